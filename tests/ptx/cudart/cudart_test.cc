// The replacement of the CUDA runtime, called as a program calls CUDA's.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/ptx/cudart/cudart_test_kernels.h"
#include "tests/ptx/cudart/device.h"
#include "tests/ptx/cudart/fat_binary.h"
#include "tests/ptx/cudart/ptx_files.h"

namespace tessera::ptx {
namespace {

using testing::HasSubstr;

class CudartTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cudaDeviceReset(), cudaSuccess); }
  void TearDown() override {
    cudaDeviceReset();
    for (void* pointer : pointers_) cudaFree(pointer);
  }

  template <class T>
  T* Device(size_t count) {
    void* pointer = nullptr;
    EXPECT_EQ(cudaMalloc(&pointer, count * sizeof(T)), cudaSuccess);
    pointers_.push_back(pointer);
    return static_cast<T*>(pointer);
  }
  template <class T>
  T* Device(const std::vector<T>& values) {
    T* pointer = Device<T>(values.size());
    EXPECT_EQ(cudaMemcpy(pointer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
    return pointer;
  }
  template <class T>
  std::vector<T> Host(const T* pointer, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpy(values.data(), pointer, count * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }
  static std::string Reason(cudaError_t error) { return cudaGetErrorString(error); }

 private:
  std::vector<void*> pointers_;
};

TEST_F(CudartTest, RunsKernelsWithDeviceVariables) {
  int* out = Device<int>(40);
  int offset = 0;
  ASSERT_EQ(ReadOffset(&offset), cudaSuccess);
  EXPECT_EQ(offset, 7);  // the initialiser
  ASSERT_EQ(SetSymbols({10, 20, 30, 40}, 5), cudaSuccess);
  ASSERT_EQ(LaunchAddSymbols(out, 40, 1000, nullptr), cudaSuccess);
  const std::vector<int> got = Host(out, 40);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(got[i], 1005 + 10 * (i % 4 + 1)) << i;
  ASSERT_EQ(ReadOffset(&offset), cudaSuccess);
  EXPECT_EQ(offset, 5);
  EXPECT_EQ(SetSymbols({}, 7), cudaSuccess);
  int much[2];
  EXPECT_EQ(cudaMemcpyFromSymbol(much, OffsetSymbol(), 8, 0, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyFromSymbol(much, &much, 4, 0, cudaMemcpyDeviceToHost), cudaErrorInvalidSymbol);
}

TEST_F(CudartTest, PutsParametersAtTheirOffsets) {
  double* out = Device<double>(8);
  const Mixed mixed = {-3, 2.5, {7, -8, 9}, 123456789};
  ASSERT_EQ(LaunchMixed(11, mixed, -12, out), cudaSuccess);
  EXPECT_THAT(Host(out, 8), testing::ElementsAre(-3, 2.5, 7, -8, 9, 123456789, 11, -12));
}

TEST_F(CudartTest, FindsAccessesOutsideAllocations) {
  const int* in = Device(std::vector<int>(8, 3));
  int* out = Device<int>(1);
  ASSERT_EQ(LaunchReadAt(in, 7, out, nullptr), cudaSuccess);
  EXPECT_EQ(Host(out, 1)[0], 3);
  for (int64_t index : {int64_t{8}, int64_t{-1}, int64_t{100}, int64_t{1} << 40}) {
    ASSERT_EQ(LaunchReadAt(in, index, out, nullptr), cudaSuccess);
    const cudaError_t error = cudaDeviceSynchronize();
    EXPECT_EQ(error, cudaErrorLaunchFailure) << index;
    EXPECT_THAT(Reason(error), HasSubstr("ReadAt(int const*, long, int*)")) << index;
    // Every later call fails too, until the reset.
    EXPECT_EQ(LaunchReadAt(in, 0, out, nullptr), cudaErrorLaunchFailure);
    cudaDeviceReset();
  }
}

TEST_F(CudartTest, FindsUsesOfFreedMemory) {
  int* out = Device<int>(1);
  void* freed = nullptr;
  ASSERT_EQ(cudaMalloc(&freed, 64), cudaSuccess);
  ASSERT_EQ(cudaMemset(freed, 0, 64), cudaSuccess);
  ASSERT_EQ(cudaFree(freed), cudaSuccess);
  Device<int>(16);  // the address is not given out again
  ASSERT_EQ(LaunchReadAt(static_cast<int*>(freed), 0, out, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  cudaDeviceReset();
  EXPECT_EQ(cudaFree(freed), cudaErrorInvalidValue);
}

TEST_F(CudartTest, FindsReadsOfBytesNeverWritten) {
  int* in = Device<int>(4);
  int* out = Device<int>(1);
  ASSERT_EQ(cudaMemset(in, 1, 12), cudaSuccess);
  ASSERT_EQ(LaunchReadAt(in, 2, out, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(LaunchReadAt(in, 3, out, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  cudaDeviceReset();
  int host[4];
  EXPECT_EQ(cudaMemcpy(host, in, 16, cudaMemcpyDeviceToHost), cudaErrorLaunchFailure);
  EXPECT_THAT(Reason(cudaErrorLaunchFailure), HasSubstr("nothing has written byte 12"));
}

TEST_F(CudartTest, RefusesCopiesThatMakeNoSense) {
  int* device = Device<int>(4);
  int host[8] = {};
  EXPECT_EQ(cudaMemcpy(device, host, 32, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_THAT(Reason(cudaErrorInvalidValue), HasSubstr("32 bytes at 0x"));
  EXPECT_EQ(cudaMemcpy(device, host, 16, cudaMemcpyDeviceToHost), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpy(device, host, 16, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(cudaMemset(host, 0, 4), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset(device, 0, 17), cudaErrorInvalidValue);
  size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  void* much = nullptr;
  EXPECT_EQ(cudaMalloc(&much, free + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(much, nullptr);
}

// Lazy streams: a program that does not wait sees old bytes.
TEST_F(CudartTest, EnqueuedWorkRunsWhenSomethingWaitsForIt) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  int* device = Device(std::vector<int>{5});
  int* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), sizeof(int)), cudaSuccess);
  *pinned = -1;
  ASSERT_EQ(cudaMemcpyAsync(pinned, device, 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(*pinned, -1);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*pinned, 5);
  // Overwritten under the copy.
  ASSERT_EQ(cudaMemcpyAsync(device, pinned, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
  *pinned = 6;
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(Host(device, 1)[0], 6);
  // Pageable memory has been read when the call returns.
  int pageable = 7;
  ASSERT_EQ(cudaMemcpyAsync(device, &pageable, 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
  pageable = 8;
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(Host(device, 1)[0], 7);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
}

TEST_F(CudartTest, StreamsWaitForEventsAndForTheDefaultStream) {
  cudaStream_t a, b;
  ASSERT_EQ(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&b), cudaSuccess);
  cudaEvent_t before, after;
  ASSERT_EQ(cudaEventCreate(&before), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&after), cudaSuccess);
  int* device = Device(std::vector<int>{1});
  ASSERT_EQ(cudaEventRecord(before, a), cudaSuccess);
  ASSERT_EQ(LaunchIncrement(device, a), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(after, a), cudaSuccess);
  ASSERT_EQ(LaunchIncrement(device, a), cudaSuccess);  // after the event
  ASSERT_EQ(cudaStreamWaitEvent(b, after, 0), cudaSuccess);
  ASSERT_EQ(LaunchIncrement(device, b), cudaSuccess);
  // The copy is the default stream's work, which waits for b; b waits for the event, not for all of a.
  EXPECT_EQ(Host(device, 1)[0], 3);
  EXPECT_EQ(cudaEventQuery(after), cudaSuccess);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, before, after), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  ASSERT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  EXPECT_EQ(Host(device, 1)[0], 4);
  for (cudaEvent_t event : {before, after}) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  for (cudaStream_t stream : {a, b}) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CudartTest, ReplaysGraphs) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  int* device = Device(std::vector<int>{0});
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(LaunchIncrement(device, stream), cudaSuccess);
  ASSERT_EQ(LaunchIncrement(device, stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(Host(device, 1)[0], 0);  // captured, not run
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(Host(device, 1)[0], 6);
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);

  // What may wait or allocate spoils a capture.
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  void* pointer = nullptr;
  EXPECT_EQ(cudaMalloc(&pointer, 16), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
  EXPECT_THAT(Reason(cudaErrorStreamCaptureInvalidated), HasSubstr("cudaMalloc"));
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CudartTest, EnforcesLimitsOfSharedMemoryAndBlocks) {
  const int* in = Device(std::vector<int>(32, 9));
  int* out = Device<int>(32);
  EXPECT_EQ(LaunchThroughShared(in, out, 48 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_THAT(Reason(cudaErrorInvalidValue), HasSubstr("without cudaFuncSetAttribute at most 49152"));
  EXPECT_EQ(AllowShared(227 * 1024 + 1), cudaErrorInvalidValue);
  EXPECT_THAT(Reason(cudaErrorInvalidValue), HasSubstr("the device has 232448"));
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  ASSERT_EQ(AllowShared(227 * 1024), cudaSuccess);
  ASSERT_EQ(LaunchThroughShared(in, out, 227 * 1024), cudaSuccess);
  EXPECT_EQ(Host(out, 32), std::vector<int>(32, 9));
  int ctas = 0;
  ASSERT_EQ(SharedOccupancy(256, 0, &ctas), cudaSuccess);
  EXPECT_EQ(ctas, 8);  // threads
  ASSERT_EQ(SharedOccupancy(256, 100 * 1024, &ctas), cudaSuccess);
  EXPECT_EQ(ctas, 2);  // shared memory
  // Dynamic shared memory that is too small for what the kernel does.
  ASSERT_EQ(LaunchThroughShared(in, out, 64), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
}

TEST_F(CudartTest, LaunchesClusters) {
  int* out = Device<int>(8);
  ASSERT_EQ(LaunchClusters(8, 4, out), cudaSuccess);
  EXPECT_THAT(Host(out, 8), testing::ElementsAre(400, 401, 402, 403, 400, 401, 402, 403));
  EXPECT_EQ(LaunchClusters(8, 3, out), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchClusters(16, 16, out), cudaErrorInvalidConfiguration);
}

TEST_F(CudartTest, EncodesAndUsesTensorMaps) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  ASSERT_EQ(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
      cudaSuccess);
  ASSERT_EQ(found, cudaDriverEntryPointSuccess);
  const auto encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  std::vector<uint16_t> values(96 * 20);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint16_t>(i);
  uint16_t* tensor = Device(values);
  uint16_t* out = Device<uint16_t>(64 * 8);
  const cuuint64_t sizes[2] = {96, 20}, strides[1] = {192};
  const cuuint32_t box[2] = {64, 8}, steps[2] = {1, 1};
  CUtensorMap map;
  const auto encode_with = [&](CUtensorMapSwizzle swizzle) {
    return encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, tensor, sizes, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  EXPECT_EQ(encode_with(CU_TENSOR_MAP_SWIZZLE_64B), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(encode_with(CU_TENSOR_MAP_SWIZZLE_128B), CUDA_SUCCESS);
  ASSERT_EQ(LaunchTensorBox(map, 40, 15, out), cudaSuccess);  // reaches past both edges
  const std::vector<uint16_t> got = Host(out, 64 * 8);
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < 64; ++column) {
      const bool inside = row + 15 < 20 && column + 40 < 96;
      const int at = row * 64 + (column ^ (row % 8) * 8);
      EXPECT_EQ(got[at], inside ? (row + 15) * 96 + column + 40 : 0) << row << " " << column;
    }
  }
  // Changed bytes, and a tensor that is larger than its memory.
  CUtensorMap broken = map;
  broken.opaque[3] ^= 1;
  ASSERT_EQ(LaunchTensorBox(broken, 0, 0, out), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(Reason(cudaErrorLaunchFailure), HasSubstr("tensor map was changed"));
  cudaDeviceReset();
  const cuuint64_t larger[2] = {96, 21};
  ASSERT_EQ(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, tensor, larger, strides, box, steps,
                   CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            CUDA_SUCCESS);
  ASSERT_EQ(LaunchTensorBox(map, 0, 15, out), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(Reason(cudaErrorLaunchFailure), HasSubstr("async.bulk.tensor"));
}

TEST_F(CudartTest, CopiesInBulkAndAsksForTheWait) {
  std::vector<uint8_t> values(1024);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i * 7);
  const uint8_t* in = Device(values);
  uint8_t* out = Device<uint8_t>(1024);
  ASSERT_EQ(LaunchBulkCopy(in, out, true), cudaSuccess);
  EXPECT_EQ(Host(out, 1024), values);
  ASSERT_EQ(LaunchBulkCopy(in, out, false), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(Reason(cudaErrorLaunchFailure), HasSubstr("cp.async.bulk.wait_group"));
  cudaDeviceReset();
  ASSERT_EQ(LaunchBulkCopy(in + 8, out, true), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure);
  EXPECT_THAT(Reason(cudaErrorLaunchFailure), HasSubstr("multiple of 16"));
}

TEST(EmulatedDeviceTest, SaysWhatAVariableMayBe) {
  const auto message = [](const char* name, const char* value) {
    setenv(name, value, 1);
    const absl::Status status = EmulatedDevice::FromEnvironment().status();
    unsetenv(name);
    return std::string(status.message());
  };
  EXPECT_EQ(message("TESSERA_EMULATOR_SMS", "12"), "");
  EXPECT_THAT(message("TESSERA_EMULATOR_SMS", "0"),
              HasSubstr("TESSERA_EMULATOR_SMS is \"0\"; expected a number from 1"));
  EXPECT_THAT(message("TESSERA_EMULATOR_SEED", "x"), HasSubstr("expected a number"));
  EXPECT_THAT(message("TESSERA_EMULATOR_ASYNC", "never"), HasSubstr("expected one of lazy, eager, random"));
  EXPECT_THAT(message("TESSERA_EMULATOR_ARCH", "80"), HasSubstr("expected one of 90, 100"));
}

// Files and their list in the test's own directory.
class PtxFilesTest : public testing::Test {
 protected:
  static std::string Write(const std::string& name, const std::string& text) {
    const std::string path = testing::TempDir() + "ptx_files_test_" + name;
    std::ofstream(path) << text;
    return path;
  }
};

TEST_F(PtxFilesTest, FindsTheFileThatHasAllEntriesForTheArchitecture) {
  const std::string ab90 =
      Write("ab90", ".version 9.0\n.target sm_90a\n.visible .entry a(\n.weak .entry b_$1(\n");
  const std::string ab100 =
      Write("ab100", ".version 9.0\n.target sm_100a\n.visible .entry a(\n.entry b_$1(\n");
  const std::string ac90 = Write("ac90", ".version 9.0\n.target sm_90a\n.visible .entry a(\n.entry c(\n");
  PtxFiles files(Write("list", ac90 + "\n" + ab100 + "\n" + ab90 + "\n"));
  EXPECT_EQ(files.Find(90, {"a", "b_$1"})->name, ab90);
  EXPECT_EQ(files.Find(90, {"c"})->name, ac90);
  EXPECT_EQ(files.Find(100, {"b_$1", "a"})->name, ab100);
  EXPECT_THAT(files.Find(100, {"a"})->text, HasSubstr("sm_100a"));
  EXPECT_THAT(std::string(files.Find(100, {"c"}).status().message()),
              HasSubstr("for sm_100 of " + testing::TempDir()));
  EXPECT_FALSE(files.Find(90, {"b"}).ok());  // a whole name, not its beginning
  EXPECT_FALSE(files.Find(90, {"a", "b_$1", "c"}).ok());
}

TEST_F(PtxFilesTest, SaysWhichFileCannotBeRead) {
  EXPECT_THAT(std::string(PtxFiles("/nowhere/list").Find(90, {"a"}).status().message()),
              HasSubstr("/nowhere/list"));
  // One that is not there is passed over, and named where it may be the one that is wanted.
  const std::string good = Write("good", ".target sm_90a\n.entry a(\n");
  PtxFiles missing(Write("missing", "/nowhere/b.ptx\n" + good + "\n"));
  EXPECT_EQ(missing.Find(90, {"a"})->name, good);
  EXPECT_THAT(std::string(missing.Find(90, {"b"}).status().message()), HasSubstr("/nowhere/b.ptx"));
  PtxFiles no_ptx(Write("no_ptx_list", Write("no_ptx", "nothing") + "\n"));
  EXPECT_THAT(std::string(no_ptx.Find(90, {"a"}).status().message()), HasSubstr(".target"));
}

TEST(FatBinaryTest, RefusesWhatNvccDoesNotWrite) {
  struct {
    int magic = 0x466243B1, version = 1;
    const void* data = nullptr;
    void* unused = nullptr;
  } wrapper;
  uint64_t container[2] = {0x00100001BA55ED50, 0};
  wrapper.data = container;
  EXPECT_EQ(ReadFatBinary(&wrapper)->size(), 0u);
  container[0] ^= 1;
  EXPECT_THAT(std::string(ReadFatBinary(&wrapper).status().message()), HasSubstr("header"));
  container[0] ^= 1;
  uint64_t entry[4] = {container[0], 16, 0, 0};  // an entry header that is cut off
  wrapper.data = entry;
  EXPECT_THAT(std::string(ReadFatBinary(&wrapper).status().message()), HasSubstr("cut off"));
  wrapper.version = 2;
  EXPECT_THAT(std::string(ReadFatBinary(&wrapper).status().message()), HasSubstr("-rdc"));
  wrapper.magic = 0;
  EXPECT_THAT(std::string(ReadFatBinary(&wrapper).status().message()), HasSubstr("mark"));
}

}  // namespace
}  // namespace tessera::ptx
