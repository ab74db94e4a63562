#include "kv/pinned_ring.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "support/lazy_device.h"

namespace inferscale::test {
namespace {

constexpr std::size_t kSlots = 3;
constexpr std::int64_t kSlotBytes = 64;

/// Keeps the calls, and fails those that a test chooses.
class WatchedDevice : public LazyDevice {
 public:
  using LazyDevice::LazyDevice;

  Result<std::uint8_t*> AllocatePinned(std::int64_t bytes) override {
    INFERSCALE_RETURN_IF_ERROR(Say("pin"));
    ++pinned;
    return LazyDevice::AllocatePinned(bytes);
  }
  void FreePinned(std::uint8_t* memory) override {
    --pinned;
    LazyDevice::FreePinned(memory);
  }
  Status CopyToDevice(std::uint8_t* to, const std::uint8_t* from, std::int64_t bytes,
                      std::uintptr_t stream) override {
    INFERSCALE_RETURN_IF_ERROR(Say("copy"));
    EXPECT_EQ(stream, copy_stream());
    return LazyDevice::CopyToDevice(to, from, bytes, stream);
  }
  Result<std::uint64_t> Record(std::uintptr_t stream) override {
    INFERSCALE_RETURN_IF_ERROR(Say("record"));
    return LazyDevice::Record(stream);
  }
  Status Wait(std::uint64_t event) override {
    INFERSCALE_RETURN_IF_ERROR(Say("wait"));
    return LazyDevice::Wait(event);
  }

  std::string calls;                                    ///< first letters
  std::function<bool(const std::string& call)> broken;  ///< which calls fail
  int pinned = 0;

 private:
  Status Say(const std::string& call) {
    calls += call.front();
    return broken && broken(call) ? Internal("a broken device") : OkStatus();
  }
};

std::vector<std::uint8_t> Bytes(std::int64_t count, int first) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  std::iota(bytes.begin(), bytes.end(), static_cast<std::uint8_t>(first));
  return bytes;
}

class PinnedRingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto ring = PinnedRing::Create(device_, kSlots, kSlotBytes);
    ASSERT_TRUE(ring.ok());
    ring_ = *std::move(ring);
    device_.calls.clear();
  }
  /// A payload that goes as soon as it has been handed over.
  Status Copy(std::vector<std::uint8_t>& to, int first) {
    std::vector<std::uint8_t> payload = Bytes(static_cast<std::int64_t>(to.size()), first);
    Status status = ring_->Copy(to.data(), payload);
    std::fill(payload.begin(), payload.end(), 0xff);
    return status;
  }

  WatchedDevice device_{3};
  std::unique_ptr<PinnedRing> ring_;
};

TEST_F(PinnedRingTest, PayloadsOfAnyLengthArriveWhole) {
  for (const std::int64_t bytes : {std::int64_t{1}, kSlotBytes - 1, kSlotBytes, kSlotBytes + 1,
                                   3 * kSlotBytes, 20 * kSlotBytes + 7}) {
    std::vector<std::uint8_t> to(static_cast<std::size_t>(bytes));
    ASSERT_TRUE(Copy(to, 5).ok());
    ASSERT_TRUE(device_.LazyDevice::Wait(ring_->last_event()).ok());
    EXPECT_EQ(to, Bytes(bytes, 5)) << bytes;
  }
}

TEST_F(PinnedRingTest, ASlotsWorthIsOneCopyAndAnEvent) {
  std::vector<std::uint8_t> to(kSlotBytes);
  ASSERT_TRUE(Copy(to, 1).ok());
  EXPECT_EQ(device_.calls, "cr");
  device_.Finish();
}

TEST_F(PinnedRingTest, WhoCopiesWaitsForTheSlotThatIsUsedAgainAndForNothingElse) {
  std::vector<std::uint8_t> to(5 * kSlotBytes);
  ASSERT_TRUE(Copy(to, 1).ok());
  EXPECT_EQ(device_.calls, "crcrcrwcrwcr");
  device_.Finish();
}

TEST_F(PinnedRingTest, ManySmallPayloadsGoRoundTheSlots) {
  std::vector<std::vector<std::uint8_t>> places(200, std::vector<std::uint8_t>(10));
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(Copy(places[static_cast<std::size_t>(i)], i).ok());
  EXPECT_EQ(device_.calls.substr(0, 12), "crcrcrwcrwcr");
  device_.Finish();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(places[static_cast<std::size_t>(i)], Bytes(10, i)) << i;
}

TEST_F(PinnedRingTest, AnErrorLosesNoSlotAndLeavesNothingUnderWay) {
  for (const std::string failing : {"copy", "record", "wait"}) {
    for (int after = 0; after < 6; ++after) {
      std::vector<std::uint8_t> before(kSlotBytes), to(8 * kSlotBytes), next(8 * kSlotBytes);
      ASSERT_TRUE(Copy(before, 9).ok());
      int left = after;
      device_.broken = [&](const std::string& call) { return call == failing && left-- == 0; };
      EXPECT_EQ(Copy(to, 1).code(), StatusCode::kInternal) << failing << after;
      device_.broken = nullptr;
      // The place may be somebody else's from here on.
      std::fill(to.begin(), to.end(), 0);
      // As many slots as before: none is skipped, none is written under a copy.
      for (int round = 0; round < 3; ++round) {
        ASSERT_TRUE(Copy(next, 30 + round).ok());
        device_.Finish();
        EXPECT_EQ(next, Bytes(8 * kSlotBytes, 30 + round)) << failing << after;
      }
      EXPECT_EQ(before, Bytes(kSlotBytes, 9));
      EXPECT_EQ(to, std::vector<std::uint8_t>(to.size(), 0)) << failing << after;
      device_.calls.clear();
      ASSERT_TRUE(Copy(next, 1).ok());
      EXPECT_EQ(device_.calls, "wcrwcrwcrwcrwcrwcrwcrwcr");
      device_.Finish();
    }
  }
}

TEST_F(PinnedRingTest, ASlotOfWhichNobodyKnowsStaysUnusedUntilSomebodyDoes) {
  std::vector<std::uint8_t> first(kSlotBytes), to(kSlotBytes);
  device_.broken = [](const std::string& call) { return call == "record"; };
  EXPECT_FALSE(Copy(first, 1).ok());
  EXPECT_FALSE(Copy(to, 2).ok());
  EXPECT_FALSE(Copy(to, 3).ok());
  EXPECT_FALSE(Copy(to, 4).ok());  // would be written over the first, whose copy may not have run
  device_.broken = nullptr;
  device_.Finish();
  EXPECT_EQ(first, Bytes(kSlotBytes, 1));
  ASSERT_TRUE(Copy(to, 5).ok());
  device_.Finish();
  EXPECT_EQ(to, Bytes(kSlotBytes, 5));
}

TEST_F(PinnedRingTest, ItsMemoryStaysUntilCopiesUnderWayHaveEnded) {
  for (const bool broken : {false, true}) {
    std::vector<std::uint8_t> to(2 * kSlotBytes);
    if (broken) {
      device_.broken = [](const std::string& call) { return call == "record"; };
      EXPECT_FALSE(Copy(to, 7).ok());
      device_.broken = nullptr;
      to.resize(kSlotBytes);
    } else {
      ASSERT_TRUE(Copy(to, 7).ok());
    }
    ring_ = nullptr;  // would be read after it was freed
    EXPECT_EQ(device_.pinned, 0);
    device_.Finish();
    EXPECT_EQ(to, Bytes(static_cast<std::int64_t>(to.size()), 7));
    ring_ = *PinnedRing::Create(device_, kSlots, kSlotBytes);
  }
}

TEST_F(PinnedRingTest, WhereTooLittleCanBePinnedNothingStaysPinned) {
  int left = 2;
  device_.broken = [&](const std::string& call) { return call == "pin" && left-- == 0; };
  EXPECT_FALSE(PinnedRing::Create(device_, kSlots, kSlotBytes).ok());
  EXPECT_EQ(device_.pinned, static_cast<int>(kSlots));  // the fixture's
  EXPECT_EQ(PinnedRing::Create(device_, 0, kSlotBytes).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(PinnedRing::Create(device_, kSlots, 0).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace inferscale::test
