// A step no larger than one before allocates nothing.
#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>

#include "gtest/gtest.h"
#include "tests/unit/server/backend/golden_model.h"

namespace {
std::atomic<int64_t> allocations{0};

void* Counted(std::size_t size) {
  ++allocations;
  void* pointer = std::malloc(size);
  if (pointer == nullptr) std::abort();
  return pointer;
}
}  // namespace

void* operator new(std::size_t size) { return Counted(size); }
void* operator new[](std::size_t size) { return Counted(size); }
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete[](void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { std::free(pointer); }

namespace tessera {
namespace {

TEST(Allocation, ALaterStepAllocatesNothing) {
  for (const std::string& name : TinyModels()) {
    auto checkpoint = Checkpoint::Open(GoldenDirectory(name));
    ASSERT_TRUE(checkpoint.ok());
    auto backend = CreateCpuBackend(**checkpoint, {.num_threads = 2});
    ASSERT_TRUE(backend.ok() && (*backend)->AllocateKvCache({.num_blocks = 32}).ok());
    std::vector<int32_t> tokens(60), table(8), other_table(8);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = i % (*checkpoint)->spec().vocab_size;
    std::iota(table.begin(), table.end(), 0);
    std::iota(other_table.begin(), other_table.end(), 8);
    SamplingParams params;
    params.temperature = 0;
    const Sampler sampler(params, {}, {}, 0, -1);
    std::vector<BatchRow> rows(2);
    rows[0].tokens = tokens;
    rows[0].block_table = table;
    rows[0].sampler = &sampler;
    rows[1] = rows[0];
    rows[1].block_table = other_table;
    std::vector<RowResult> results;
    ASSERT_TRUE((*backend)->Run(rows, &results).ok());
    ASSERT_TRUE(results[0].status.ok()) << results[0].status;
    for (int step = 0; step < 20; ++step) {
      for (BatchRow& row : rows) {
        row.start = 60 + step;
        row.tokens = absl::MakeConstSpan(tokens).subspan(0, 1);
      }
      const int64_t before = allocations;
      ASSERT_TRUE((*backend)->Run(rows, &results).ok());
      EXPECT_EQ(allocations - before, 0) << name << " step " << step;
      ASSERT_TRUE(results[0].status.ok() && results[1].status.ok());
    }
  }
}

}  // namespace
}  // namespace tessera
