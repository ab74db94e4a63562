#include "memory/background_worker.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <vector>

namespace inferscale {
namespace {

constexpr std::chrono::seconds kPatience(30);

TEST(BackgroundWorker, ASlowSliceHoldsUpNoTask) {
  std::promise<void> begun, release, done;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<bool> first{true};
  BackgroundWorker worker([&]() -> Result<bool> {
    if (first.exchange(false)) {
      begun.set_value();
      released.wait();
    }
    return false;
  });
  begun.get_future().wait();
  worker.Post([&done] { done.set_value(); });
  EXPECT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  release.set_value();
}

TEST(BackgroundWorker, TasksRunInOrderAndAllOfThemBeforeItEnds) {
  std::vector<int> order;
  {
    BackgroundWorker worker([]() -> Result<bool> { return false; });
    for (int i = 0; i < 100; ++i) worker.Post([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(BackgroundWorker, AFailingSliceIsTriedAgainAndSaysSo) {
  std::atomic<int> calls{0};
  std::promise<void> third;
  BackgroundWorker worker([&]() -> Result<bool> {
    if (++calls == 4) third.set_value();
    return Unavailable("not now");
  });
  EXPECT_EQ(third.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(worker.Stuck().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace inferscale
