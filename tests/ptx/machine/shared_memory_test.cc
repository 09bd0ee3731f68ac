// The proxy rule and the marks of asynchronous operations, on the memory alone.
#include "tests/ptx/machine/shared_memory.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/ptx/machine/fault.h"

namespace tessera::ptx {
namespace {

constexpr uint32_t kBase = kSharedReserved;

template <class F>
void ExpectFault(Rule rule, F f) {
  try {
    f();
    ADD_FAILURE() << "no fault: " << RuleName(rule);
  } catch (const FaultError& fault) {
    EXPECT_EQ(fault.rule, rule) << fault.message;
  }
}

void Read16(SharedMemory& m, uint32_t offset = kBase) {
  uint8_t out[16];
  m.AsyncLoad(offset, 16, out);
}

TEST(Proxy, GenericWriteNeedsAFenceOfItsWriter) {
  SharedMemory m(1024, 4);
  const uint8_t data[16] = {};
  m.Store(kBase, 16, data, 0);
  ExpectFault(Rule::kProxy, [&] { Read16(m); });
  m.FenceProxyAsync(1);  // of another warp that has not synchronised
  ExpectFault(Rule::kProxy, [&] { Read16(m); });
  m.FenceProxyAsync(0);
  Read16(m);
  m.Store(kBase + 4, 4, data, 0);  // again
  ExpectFault(Rule::kProxy, [&] { Read16(m); });
}

TEST(Proxy, FenceAfterABarrierCoversWhatOthersWroteBeforeIt) {
  SharedMemory m(1024, 4);
  const uint8_t data[16] = {};
  m.Store(kBase, 16, data, 0);
  m.NoteSynchronised(1);
  m.Store(kBase + 64, 16, data, 0);  // after the barrier
  m.FenceProxyAsync(1);
  Read16(m);
  ExpectFault(Rule::kProxy, [&] { Read16(m, kBase + 64); });
}

TEST(Proxy, AsyncWritesNeedNoFence) {
  SharedMemory m(1024, 2);
  const uint8_t data[16] = {};
  m.Store(kBase, 16, data, 0);
  m.AsyncStore(kBase, 16, data);
  Read16(m);
}

TEST(Proxy, MbarrierInitNeedsItsFence) {
  SharedMemory m(1024, 2);
  m.InitMbarrier(kBase, 1, 0);
  m.At(kBase);
  ExpectFault(Rule::kProxy, [&] { m.AsyncAt(kBase); });
  m.FenceMbarrierInit(0);
  m.AsyncAt(kBase);
  m.InitMbarrier(kBase + 8, 1, 1);
  m.FenceProxyAsync(1);
  m.AsyncAt(kBase + 8);
}

TEST(AsyncMarks, BytesUnderAWriteAreNobodyElses) {
  SharedMemory m(1024, 2);
  uint8_t data[16] = {};
  m.Store(kBase, 16, data, 0);
  m.BeginAsyncWrite(kBase, 16);
  ExpectFault(Rule::kUnfinishedOperation, [&] { m.Load(kBase + 12, 4, data); });
  ExpectFault(Rule::kUnfinishedOperation, [&] { m.Store(kBase, 1, data, 0); });
  ExpectFault(Rule::kUnfinishedOperation, [&] { m.BeginAsyncRead(kBase, 4); });
  ExpectFault(Rule::kUnfinishedOperation, [&] { m.BeginAsyncWrite(kBase, 4); });
  m.EndAsyncWrite(kBase, 16);
  m.Load(kBase + 12, 4, data);
}

TEST(AsyncMarks, BytesUnderAReadMayBeReadOnly) {
  SharedMemory m(1024, 2);
  uint8_t data[16] = {};
  m.Store(kBase, 16, data, 0);
  m.BeginAsyncRead(kBase, 16);
  m.BeginAsyncRead(kBase, 16);
  m.Load(kBase, 16, data);
  m.EndAsyncRead(kBase, 16);
  ExpectFault(Rule::kUnfinishedOperation, [&] { m.Store(kBase + 8, 4, data, 0); });
  m.EndAsyncRead(kBase, 16);
  m.Store(kBase + 8, 4, data, 0);
}

}  // namespace
}  // namespace tessera::ptx
