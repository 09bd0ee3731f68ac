#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <numeric>

namespace tessera::cpu {
namespace {

TEST(ThreadPoolTest, CallsEachIndexOnce) {
  for (int threads : {0, 1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), std::max(1, threads));
    for (int64_t count : {0, 1, 2, 3, 7, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      pool.ParallelFor(count, [&](int64_t i) { ++calls[i]; });
      for (auto& c : calls) EXPECT_EQ(c.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, ManyShortJobsSeeEachOthersWrites) {
  ThreadPool pool(4);
  std::vector<int64_t> values(64, 0);  // plain memory: each job must see what the one before wrote
  for (int job = 0; job < 20000; ++job) {
    pool.ParallelFor(64, [&](int64_t i) { values[i] = values[i] + 1; });
  }
  EXPECT_EQ(values, std::vector<int64_t>(64, 20000));
}

TEST(ThreadPoolTest, JobsOfChangingSizeCallEachIndexOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> calls(64);
  for (int job = 0; job < 20000; ++job) {
    const int64_t count =
        job % 2 ? 64 : 2;  // a late worker of a small job meets the larger count of the next
    pool.ParallelFor(count, [&](int64_t i) { ++calls[i]; });
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(calls[i].exchange(0), 1) << "job " << job << ", index " << i;
  }
}

TEST(ThreadPoolTest, JobsAfterSleepRun) {
  ThreadPool pool(3);
  for (int job = 0; job < 20; ++job) {
    std::atomic<int64_t> sum{0};
    pool.ParallelFor(100, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum.load(), 4950);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST(ThreadPoolTest, NestedCallsRunInline) {
  ThreadPool pool(3);
  std::atomic<int64_t> calls{0};
  pool.ParallelFor(10, [&](int64_t) {
    const auto thread = std::this_thread::get_id();
    pool.ParallelFor(10, [&](int64_t) {
      EXPECT_EQ(std::this_thread::get_id(), thread);
      ++calls;
    });
  });
  EXPECT_EQ(calls.load(), 100);
}

TEST(ThreadPoolTest, CallersFromSeveralThreadsTakeTurns) {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int64_t> calls{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int job = 0; job < 500; ++job) pool.ParallelFor(5, [&](int64_t) { ++calls; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls.load(), 4 * 500 * 5);
}

TEST(ThreadPoolTest, AnIdlePoolUsesNoProcessorTime) {
  ThreadPool pool(4);
  pool.ParallelFor(16, [](int64_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto used = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  const int64_t before = used();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(used() - before, 20'000);
}

}  // namespace
}  // namespace tessera::cpu
