#include "engine/vllm/capture_history.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

#include "support/kv_blocks.h"

namespace inferscale {
namespace {

class CaptureHistoryTest : public ::testing::Test {
 protected:
  CaptureHistory::Attempt Of(std::uint64_t number, std::uint64_t start = 1,
                             std::uint64_t epoch = 0) {
    return {&core_, start, test::TestKey(number), epoch};
  }
  bool MayTry(const CaptureHistory::Attempt& attempt) {
    return history_.MayTry(attempt, now_).ok();
  }
  void Ended(const CaptureHistory::Attempt& attempt, const Status& status) {
    history_.Ended(attempt, status, now_);
  }
  /// Until it may be tried again.
  std::chrono::milliseconds Pause(const CaptureHistory::Attempt& attempt) {
    const auto began = now_;
    while (!MayTry(attempt)) now_ += std::chrono::milliseconds(500);
    return std::chrono::duration_cast<std::chrono::milliseconds>(now_ - began);
  }

  CaptureHistory history_;
  CaptureHistory::Time now_{};
  int core_ = 0, other_core_ = 0;
};

TEST_F(CaptureHistoryTest, WhatCanNeverBeStoredIsNotTriedAgain) {
  for (const Status& status : {Unsupported("a model with a window"), InvalidArgument("too long")}) {
    Ended(Of(1), status);
    now_ += std::chrono::hours(100);
    EXPECT_EQ(history_.MayTry(Of(1), now_).code(), status.code());
    EXPECT_TRUE(MayTry(Of(2)));
  }
}

TEST_F(CaptureHistoryTest, ANewStartAnErasureAndAnotherCoreBeginAnew) {
  Ended(Of(1), Unsupported("refused"));
  CaptureHistory::Attempt elsewhere = Of(1);
  elsewhere.core = &other_core_;
  EXPECT_TRUE(MayTry(elsewhere));
  EXPECT_FALSE(MayTry(Of(1)));
  EXPECT_TRUE(MayTry(Of(1, 2)));
  Ended(Of(1), Unsupported("refused"));
  EXPECT_TRUE(MayTry(Of(1, 1, 3)));
  EXPECT_EQ(history_.size(), 0U);
}

TEST_F(CaptureHistoryTest, WhatMayWorkLaterIsTriedAfterAPauseThatDoubles) {
  std::chrono::milliseconds before{0};
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(MayTry(Of(1)));
    Ended(Of(1), Unavailable("not now"));
    const auto pause = Pause(Of(1));
    EXPECT_EQ(pause, i == 0 ? CaptureHistory::kFirstPause
                            : std::min(2 * before, CaptureHistory::kLongestPause));
    before = pause;
  }
  Ended(Of(1), OkStatus());
  EXPECT_EQ(Pause(Of(1)), CaptureHistory::kFirstPause);  // it has worked
}

TEST_F(CaptureHistoryTest, WhatIsGoneAtOnceIsNotStoredAgainAtOnce) {
  Ended(Of(1), OkStatus());
  EXPECT_EQ(history_.MayTry(Of(1), now_).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Pause(Of(1)), CaptureHistory::kFirstPause);
  Ended(Of(1), OkStatus());
  EXPECT_EQ(Pause(Of(1)), 2 * CaptureHistory::kFirstPause);
  Ended(Of(1), OkStatus());
  now_ += CaptureHistory::kLasts;  // this time it was of use
  EXPECT_TRUE(MayTry(Of(1)));
  Ended(Of(1), OkStatus());
  EXPECT_EQ(Pause(Of(1)), CaptureHistory::kFirstPause);
}

TEST_F(CaptureHistoryTest, OfManyTheLatestAreRemembered) {
  for (std::uint64_t n = 0; n < CaptureHistory::kMost + 100; ++n) {
    Ended(Of(n), Unsupported("refused"));
  }
  EXPECT_EQ(history_.size(), CaptureHistory::kMost);
  EXPECT_TRUE(MayTry(Of(0)));
  EXPECT_FALSE(MayTry(Of(CaptureHistory::kMost)));
}

}  // namespace
}  // namespace inferscale
