// Bulk and tensor copies as instructions, in kernels of hand-written PTX: what they do, and a kernel for each fault.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/ptx/emulator.h"
#include "tests/ptx/tma/tensor_map.h"

namespace tessera::ptx {
namespace {

using testing::HasSubstr;

// Names for the kernels' bodies: %in, %out, %map (64 bits), %buffer, %bar (shared addresses), barrier of one arrival.
constexpr char kHead[] = R"(
.version 9.0
.target sm_90a
.address_size 64
.visible .entry test(.param .u64 in, .param .u64 out, .param .align 64 .b8 map[128])
{
  .reg .pred %done;
  .reg .b16 %mask;
  .reg .b32 %buffer, %bar, %a, %b, %rank, %peer, %peerbar;
  .reg .f32 %f;
  .reg .b64 %in, %out, %map;
  .shared .align 1024 .b8 buffer[4096];
  .shared .align 8 .b64 barrier;
  ld.param.u64 %in, [in];
  ld.param.u64 %out, [out];
  mov.b64 %map, map;
  cvta.param.u64 %map, %map;
  mov.u32 %buffer, buffer;
  mov.u32 %bar, barrier;
  mbarrier.init.shared::cta.b64 [%bar], 1;
  fence.mbarrier_init.release.cluster;
)";

// Abbreviations in bodies.
std::string Expand(std::string body) {
  int waits = 0;
  while (body.find("$WAIT") != std::string::npos) {
    const std::string label = absl::StrCat("WAIT", ++waits);
    body.replace(
        body.find("$WAIT"), 5,
        absl::StrCat(label, ":\n  mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;\n  @!%done bra ",
                     label, ";\n"));
  }
  return absl::StrReplaceAll(
      body,
      {{"$EXPECT", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar],"},
       {"$LOAD", "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"},
       {"$STORE", "cp.async.bulk.global.shared::cta.bulk_group"},
       {"$TENSOR", "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"},
       {"$FINISH", "cp.async.bulk.commit_group;\n  cp.async.bulk.wait_group 0;"},
       // All of the buffer to `out`.
       {"$DUMP",
        "cp.async.bulk.global.shared::cta.bulk_group [%out], [%buffer], 4096;\n  "
        "cp.async.bulk.commit_group;\n"
        "  cp.async.bulk.wait_group 0;"},
       // Makes all of the buffer defined.
       {"$CLEAR",
        "mov.u32 %a, 0;\nCLEAR:\n  add.u32 %b, %buffer, %a;\n  st.shared.u32 [%b], 0;\n  add.u32 %a, %a, 4;\n"
        "  setp.lt.u32 %done, %a, 4096;\n  @%done bra CLEAR;\n  fence.proxy.async.shared::cta;"}});
}

class TmaTest : public testing::TestWithParam<AsyncPolicy> {
 protected:
  static constexpr size_t kBytes = 4096;

  TmaTest() : in(kBytes), out(2 * kBytes, 0xEE) {
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i * 37 >> 3);
  }

  // Runs a kernel of one thread a CTA.
  absl::Status Run(const std::string& body, uint32_t ctas = 1) {
    GlobalMemory memory;
    memory.Add(in.data(), in.size(), "in", {.writable = true, .track_defined = true});
    memory.MarkDefined(in.data(), written);
    memory.Add(out.data(), out.size(), "out");
    auto program =
        Program::Load(absl::StrCat(kHead, Expand(body), "\n  ret;\n}\n"), "test.ptx", FullRegistry(), memory);
    if (!program.ok()) return program.status();
    const auto entry = (*program)->FindEntry("test");
    if (!entry.ok()) return entry.status();
    std::vector<std::byte> params((*entry)->param_bytes);
    const uint64_t addresses[2] = {reinterpret_cast<uint64_t>(in.data()),
                                   reinterpret_cast<uint64_t>(out.data())};
    std::memcpy(params.data(), addresses, sizeof(addresses));
    std::memcpy(params.data() + (*entry)->params[2]->address, map, sizeof(map));
    LaunchConfig config;
    config.grid = config.cluster = {ctas, 1, 1};
    ExecutionOptions options;
    options.threads = 1;
    options.async = GetParam();
    return Launch(**program, **entry, config, params, memory, options);
  }
  std::string Message(const std::string& body, uint32_t ctas = 1) {
    return std::string(Run(body, ctas).message());
  }

  // A matrix of 64 rows of 32 bf16 over `in`, boxes of 32 x 8, 64-byte swizzle.
  TensorMap Matrix(TensorSwizzle swizzle = TensorSwizzle::k64B) {
    const uint64_t sizes[2] = {32, 64}, strides[1] = {64};
    const uint32_t box[2] = {32, 8}, steps[2] = {1, 1};
    TiledTensorArguments a;
    a.element = static_cast<uint32_t>(TensorElement::kBfloat16);
    a.rank = 2;
    a.address = reinterpret_cast<uint64_t>(in.data());
    a.sizes = sizes;
    a.strides = strides;
    a.box = box;
    a.steps = steps;
    a.swizzle = static_cast<uint32_t>(swizzle);
    auto made = MakeTiledTensorMap(a);
    EXPECT_TRUE(made.ok()) << made.status();
    return *made;
  }

  // Aligned as device memory is.
  template <class T>
  struct Aligned {
    using value_type = T;
    T* allocate(size_t n) { return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{256})); }
    void deallocate(T* p, size_t) { ::operator delete (p, std::align_val_t{256}); }
    bool operator==(const Aligned&) const { return true; }
  };
  using Bytes = std::vector<uint8_t, Aligned<uint8_t>>;

  Bytes in, out;
  size_t written = kBytes;  // of `in`
  uint8_t map[kTensorMapBytes] = {};
};

INSTANTIATE_TEST_SUITE_P(Policies, TmaTest,
                         testing::Values(AsyncPolicy::kLazy, AsyncPolicy::kEager, AsyncPolicy::kRandom),
                         [](const testing::TestParamInfo<AsyncPolicy>& info) {
                           return info.param == AsyncPolicy::kLazy    ? "Lazy"
                                  : info.param == AsyncPolicy::kEager ? "Eager"
                                                                      : "Random";
                         });

TEST_P(TmaTest, CopiesBytesBothWays) {
  EXPECT_EQ(Message("$EXPECT 4096;\n $LOAD [%buffer], [%in], 4096, [%bar];\n $WAIT\n $DUMP"), "");
  EXPECT_TRUE(std::equal(in.begin(), in.end(), out.begin()));
}

TEST_P(TmaTest, MovesBytesNeverWrittenAsNans) {
  written = 1003;
  EXPECT_EQ(Message("$EXPECT 4096;\n $LOAD [%buffer], [%in], 4096, [%bar];\n $WAIT\n $DUMP"), "");
  EXPECT_TRUE(std::equal(in.begin(), in.begin() + written, out.begin()));
  for (size_t i = written; i < kBytes; ++i) ASSERT_EQ(out[i], 0xFF) << i;
  EXPECT_THAT(Message("ld.global.u32 %a, [%in+1004];"), HasSubstr("nothing has written"));
}

TEST_P(TmaTest, ExpectsTheBytesOfSeveralCopies) {
  // In two halves, the expectation after the first copy was issued.
  EXPECT_EQ(Message("$LOAD [%buffer], [%in], 1024, [%bar];\n $EXPECT 4096;\n"
                    "$LOAD [%buffer+1024], [%in+1024], 3072, [%bar];\n $WAIT\n $DUMP"),
            "");
  EXPECT_TRUE(std::equal(in.begin(), in.end(), out.begin()));
}

TEST_P(TmaTest, FindsReadsBeforeTheWait) {
  if (GetParam() != AsyncPolicy::kLazy) GTEST_SKIP() << "the copy may have been made";
  EXPECT_THAT(
      Message("$EXPECT 64;\n $LOAD [%buffer], [%in], 64, [%bar];\n ld.shared.u32 %a, [%buffer];\n $WAIT"),
      HasSubstr("ld.shared.u32"));
}

TEST_P(TmaTest, FindsTooFewBytesAsADeadlock) {
  const std::string message = Message("$EXPECT 128;\n $LOAD [%buffer], [%in], 64, [%bar];\n $WAIT");
  EXPECT_THAT(message, HasSubstr("64 bytes"));
  EXPECT_THAT(message, HasSubstr("mbarrier"));
}

TEST_P(TmaTest, RefusesWrongOperands) {
  EXPECT_THAT(Message("$LOAD [%buffer], [%in], 24, [%bar];"),
              HasSubstr("24 bytes; expected a positive multiple of 16"));
  EXPECT_THAT(Message("$LOAD [%buffer+8], [%in], 16, [%bar];"),
              HasSubstr("the destination's shared-memory address"));
  EXPECT_THAT(Message("$LOAD [%buffer], [%in+4], 16, [%bar];"), HasSubstr("the source's global address"));
  EXPECT_THAT(Message("$LOAD [%buffer], [%in], 16, [%buffer+64];"), HasSubstr("mbarrier"));
  EXPECT_THAT(Message("$EXPECT 8192;\n $LOAD [%buffer], [%in], 8192, [%bar];\n $WAIT"), HasSubstr("in ("));
  EXPECT_THAT(Message("mov.u32 %a, 64;\n $LOAD [%buffer], [%in+4080], %a, [%bar];"), HasSubstr("in ("));
  EXPECT_THAT(Message("add.u32 %b, %buffer, 4096;\n $LOAD [%b], [%in], 4096, [%bar];"), HasSubstr("shared"));
  EXPECT_THAT(Message("cp.async.bulk.global.global.bulk_group [%out], [%in], 16;"),
              HasSubstr("there is no bulk copy"));
}

TEST_P(TmaTest, AsksForTheProxyFence) {
  const std::string write = "st.shared.v4.u32 [%buffer], {1, 2, 3, 4};\n";
  const std::string store = "$STORE [%out], [%buffer], 16;\n $FINISH";
  EXPECT_NE(Message(write.c_str() + store), "");
  EXPECT_EQ(Message(write + "fence.proxy.async.shared::cta;\n" + store), "");
  EXPECT_EQ(out[12], 4);
  EXPECT_EQ(out[16], 0xEE);
}

TEST_P(TmaTest, AsksForTheEndOfAStore) {
  EXPECT_THAT(Message("$CLEAR\n $STORE [%out], [%buffer], 16;"), HasSubstr("in no committed group"));
  EXPECT_THAT(Message("$CLEAR\n $STORE [%out], [%buffer], 16;\n cp.async.bulk.commit_group;"),
              HasSubstr("not waited for"));
  // Of two groups the older one alone.
  EXPECT_THAT(Message("$CLEAR\n $STORE [%out], [%buffer], 16;\n cp.async.bulk.commit_group;\n"
                      "$STORE [%out+16], [%buffer], 16;\n cp.async.bulk.commit_group;\n "
                      "cp.async.bulk.wait_group.read 1;"),
              HasSubstr("not waited for"));
  EXPECT_EQ(Message("$CLEAR\n $STORE [%out], [%buffer], 16;\n cp.async.bulk.commit_group;\n"
                    "cp.async.bulk.wait_group.read 0;"),
            "");
}

TEST_P(TmaTest, ReusesSharedMemoryAfterItWasRead) {
  if (GetParam() == AsyncPolicy::kLazy) {
    EXPECT_NE(Message("$CLEAR\n $STORE [%out], [%buffer], 16;\n cp.async.bulk.commit_group;\n"
                      "st.shared.u32 [%buffer], 5;\n cp.async.bulk.wait_group 0;"),
              "");
  }
  EXPECT_EQ(
      Message("$CLEAR\n $STORE [%out], [%buffer], 16;\n cp.async.bulk.commit_group;\n"
              "cp.async.bulk.wait_group.read 0;\n st.shared.u32 [%buffer], 5;\n cp.async.bulk.wait_group 0;"),
      "");
  EXPECT_EQ(out[0], 0);
}

TEST_P(TmaTest, LoadsBoxesOfTensors) {
  EncodeTensorMap(Matrix(), map);
  // Rows 60 to 67, of which four are outside; columns from 8.
  EXPECT_EQ(
      Message(
          "prefetch.tensormap [%map];\n $CLEAR\n $EXPECT 512;\n $TENSOR [%buffer], [%map, {8, 60}], [%bar];\n"
          "$WAIT\n $DUMP"),
      "");
  for (int row = 0; row < 8; ++row) {
    for (int byte = 0; byte < 64; ++byte) {
      const int at = (row * 64 + byte) ^ (((row * 64) >> 7 & 3) << 4);
      const int column = byte / 2 + 8;
      EXPECT_EQ(out[at], row < 4 && column < 32 ? in[(60 + row) * 64 + column * 2 + byte % 2] : 0)
          << row << " " << byte;
    }
  }
  EXPECT_EQ(out[512], 0);
}

TEST_P(TmaTest, StoresBoxesInsideTheTensorAlone) {
  TensorMap matrix = Matrix(TensorSwizzle::kNone);
  matrix.address = reinterpret_cast<uint64_t>(out.data());
  matrix.sizes = {30, 10};  // of rows of 64 bytes
  EncodeTensorMap(matrix, map);
  EXPECT_EQ(
      Message(
          "$EXPECT 4096;\n $LOAD [%buffer], [%in], 4096, [%bar];\n $WAIT\n"
          "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {16, 6}], [%buffer];\n $FINISH"),
      "");
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 32; ++column) {
      const bool written = row >= 6 && row < 10 && column >= 16 && column < 30;
      EXPECT_EQ(out[row * 64 + column * 2], written ? in[(row - 6) * 64 + (column - 16) * 2] : 0xEE);
    }
  }
}

TEST_P(TmaTest, RefusesWrongTensorCopies) {
  EXPECT_THAT(Message("$TENSOR [%buffer], [%map, {0, 0}], [%bar];"), HasSubstr("no tensor map"));
  EncodeTensorMap(Matrix(), map);
  EXPECT_THAT(Message("$TENSOR [%buffer+64], [%map, {0, 0}], [%bar];"), HasSubstr("multiple of 128"));
  EXPECT_THAT(Message("$TENSOR [%buffer], [%map+8, {0, 0}], [%bar];"), HasSubstr("the tensor map's address"));
  EXPECT_THAT(
      Message("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%buffer], "
              "[%map, {0}], [%bar];"),
      HasSubstr("a 1-dimensional copy with a tensor map of 2 dimensions"));
  EXPECT_THAT(
      Message("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%buffer], "
              "[%map, {0, 0, 0}], [%bar], {%mask};"),
      HasSubstr("im2col"));
  EXPECT_THAT(
      Message("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%buffer], "
              "[%map, {0, 0, 0}], [%bar];"),
      HasSubstr("2 coordinates"));
  EXPECT_THAT(
      Message("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {-1, 0}], [%buffer];"),
      HasSubstr("must not be negative"));
  map[20] ^= 1;
  EXPECT_THAT(Message("$TENSOR [%buffer], [%map, {0, 0}], [%bar];"), HasSubstr("was changed"));
}

TEST_P(TmaTest, AddsIntoGlobalMemory) {
  std::vector<float> values(kBytes / 4), sums(kBytes / 4);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  std::memcpy(in.data(), values.data(), kBytes);
  for (float& sum : sums) sum = 0.5f;
  std::memcpy(out.data(), sums.data(), kBytes);
  EXPECT_EQ(
      Message(
          "$EXPECT 4096;\n $LOAD [%buffer], [%in], 4096, [%bar];\n $WAIT\n"
          "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%out], [%buffer], 4096;\n $FINISH"),
      "");
  std::memcpy(sums.data(), out.data(), kBytes);
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], i + 0.5f);
  EXPECT_THAT(Message("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.bf16 [%out], [%buffer], 16;"),
              HasSubstr("needs .noftz"));
  EXPECT_THAT(Message("cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%out], [%buffer], 16;"),
              HasSubstr("no bulk reduction .min.f32"));
}

// CTA 0 loads for both; each stores what it got.
constexpr char kMulticast[] = R"(
  mov.u32 %rank, %cluster_ctarank;
  $EXPECT 1024;
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
  setp.ne.u32 %done, %rank, 0;
  @%done bra ISSUED;
  mov.b16 %mask, $MASK;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%buffer], [%in], 1024, [%bar], %mask;
ISSUED:
  $WAIT
  mul.wide.u32 %map, %rank, 1024;
  add.u64 %out, %out, %map;
  cp.async.bulk.global.shared::cta.bulk_group [%out], [%buffer], 1024;
  $FINISH
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
)";

TEST_P(TmaTest, MulticastsInACluster) {
  EXPECT_EQ(Message(absl::StrReplaceAll(kMulticast, {{"$MASK", "3"}}), 2), "");
  for (int cta = 0; cta < 2; ++cta)
    EXPECT_TRUE(std::equal(in.begin(), in.begin() + 1024, out.begin() + cta * 1024));
  EXPECT_THAT(Message(absl::StrReplaceAll(kMulticast, {{"$MASK", "4"}}), 2),
              HasSubstr("the multicast mask is 0x4"));
  // The other CTA waits for ever.
  EXPECT_THAT(Message(absl::StrReplaceAll(kMulticast, {{"$MASK", "1"}}), 2), HasSubstr("1024 bytes"));
}

TEST_P(TmaTest, CopiesBetweenCtas) {
  const std::string body = R"(
  mov.u32 %rank, %cluster_ctarank;
  $CLEAR
  add.u32 %a, %rank, 5;
  st.shared.u32 [%buffer], %a;
  fence.proxy.async.shared::cta;
  $EXPECT 16;
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
  xor.b32 %b, %rank, 1;
  add.u32 %a, %buffer, 1024;
  mapa.shared::cluster.u32 %peer, %a, %b;
  mapa.shared::cluster.u32 %peerbar, %bar, %b;
  cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%peer], [%buffer], 16, [$BAR];
  $WAIT
  ld.shared.u32 %a, [%buffer+1024];
  mul.wide.u32 %map, %rank, 4;
  add.u64 %out, %out, %map;
  st.global.u32 [%out], %a;
  barrier.cluster.arrive.release.aligned;
  barrier.cluster.wait.acquire.aligned;
)";
  EXPECT_EQ(Message(absl::StrReplaceAll(body, {{"$BAR", "%peerbar"}}), 2), "");
  EXPECT_EQ(out[0], 6);
  EXPECT_EQ(out[4], 5);
  EXPECT_THAT(Message(absl::StrReplaceAll(body, {{"$BAR", "%bar"}}), 2),
              HasSubstr("they must be in the same CTA"));
}

}  // namespace
}  // namespace tessera::ptx
