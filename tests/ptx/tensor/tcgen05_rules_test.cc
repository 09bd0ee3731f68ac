// One small kernel for each way to misuse tcgen05, and what the emulator says to it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/ptx/tensor/instruction_descriptor.h"
#include "tests/ptx/tensor/smem_descriptor.h"
#include "tests/ptx/tensor/tensor_kernel.h"

namespace tessera::ptx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// bf16, M 128, N 16: A at 0, B at 16 KB, K-major 128B, all ones.
TensorKernelArguments Arguments() {
  TensorKernelArguments arguments;
  arguments.image.assign(24 * 1024, 0);
  for (size_t i = 0; i < arguments.image.size(); i += 2) {
    arguments.image[i] = 0x80;
    arguments.image[i + 1] = 0x3f;
  }
  MatrixDescriptor d;
  d.swizzle = Swizzle::k128B;
  d.leading_offset = 16;
  d.stride_offset = 1024;
  arguments.a = *EncodeDescriptor(DescriptorTarget::kSm100, d);
  d.start_address = 16384;
  arguments.b = *EncodeDescriptor(DescriptorTarget::kSm100, d);
  InstructionDescriptor desc;
  desc.n = 16;
  arguments.idesc = *EncodeInstructionDescriptor(MmaKind::kF16, desc);
  return arguments;
}

absl::Status RunBody(std::string_view body, const TensorKernelArguments& arguments = Arguments(),
                     int cta_group = 1, TensorKernelLaunch launch = {}) {
  std::vector<uint32_t> out;
  return RunTensorKernel(TensorKernel(body, cta_group), arguments, launch, 16, &out);
}

std::string Fault(std::string_view body, const TensorKernelArguments& arguments = Arguments(),
                  int cta_group = 1) {
  const absl::Status status = RunBody(body, arguments, cta_group);
  EXPECT_FALSE(status.ok()) << "ran without a fault";
  return std::string(status.message());
}

// Pieces of the kernels.
constexpr char kAddress[] = R"(
  shl.b32 %x90, %warp, 21;
  add.u32 %x90, %x90, %tmem;
)";
constexpr char kIssue[] = R"(
  setp.ne.u32 %p1, 0, 0;
  @!%leader bra ISSUED;
  tcgen05.mma.cta_group::1.kind::f16 [%tmem], %a, %b, %idesc, %p1;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];
ISSUED:
)";
constexpr char kWait[] = R"(
WAITING:
  mbarrier.try_wait.parity.shared::cta.b64 %p2, [bar], 0;
  @!%p2 bra WAITING;
)";
constexpr char kAfter[] = "  tcgen05.fence::after_thread_sync;\n";
constexpr char kLoad[] = R"(
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%x100}, [%x90];
)";
constexpr char kWaitLoad[] = "  tcgen05.wait::ld.sync.aligned;\n";
constexpr char kStore[] = R"(
  mov.u32 %x100, 7;
  tcgen05.st.sync.aligned.32x32b.x1.b32 [%x90], {%x100};
)";
constexpr char kWaitStore[] = "  tcgen05.wait::st.sync.aligned;\n";

std::string Join(std::initializer_list<std::string_view> pieces) {
  std::string body;
  for (std::string_view piece : pieces) body += piece;
  return body;
}

TEST(Tcgen05RulesTest, TheUsualSequenceIsFine) {
  const absl::Status status = RunBody(Join({kAddress, kIssue, kWait, kAfter, kLoad, kWaitLoad}));
  EXPECT_TRUE(status.ok()) << status;
  const absl::Status store = RunBody(Join({kAddress, kStore, kWaitStore, kLoad, kWaitLoad}));
  EXPECT_TRUE(store.ok()) << store;
}

TEST(Tcgen05RulesTest, FaultsNameTheirPlace) {
  EXPECT_THAT(Fault(Join({kAddress, kLoad})), AllOf(HasSubstr("kernel k"), HasSubstr("tcgen05.ld"),
                                                    HasSubstr("mini:"), HasSubstr("CTA (0,0,0), warp ")));
}

// ---- results before they are there

TEST(Tcgen05RulesTest, ReadBeforeCommitAndWait) {
  EXPECT_THAT(
      Fault(Join({kAddress, kIssue, "  bar.sync 0;\n", kLoad})),
      AllOf(HasSubstr("tcgen05.mma"), HasSubstr("has not completed; needs tcgen05.commit and a wait")));
}

TEST(Tcgen05RulesTest, BarrierOfTheCtaIsNoWaitForTheMma) {
  EXPECT_THAT(Fault(Join({kAddress, kIssue, "  bar.sync 0;\n", kAfter, kLoad})),
              HasSubstr("has not completed"));
}

TEST(Tcgen05RulesTest, ReadWithoutFenceAfterTheWait) {
  EXPECT_THAT(Fault(Join({kAddress, kIssue, kWait, kLoad})),
              HasSubstr("no tcgen05.fence::after_thread_sync"));
}

TEST(Tcgen05RulesTest, FenceBeforeTheWaitDoesNotCount) {
  EXPECT_THAT(Fault(Join({kAddress, kIssue, kAfter, kWait, kLoad})),
              HasSubstr("no tcgen05.fence::after_thread_sync"));
}

TEST(Tcgen05RulesTest, LoadOfAStoreWithoutWait) {
  EXPECT_THAT(Fault(Join({kAddress, kStore, kLoad})), HasSubstr("needs tcgen05.wait::st"));
}

TEST(Tcgen05RulesTest, MmaOverALoadWithoutWait) {
  EXPECT_THAT(Fault(Join({kAddress, kStore, kWaitStore, kLoad,
                          "  tcgen05.fence::before_thread_sync;\n  bar.sync 0;\n", kAfter, kIssue})),
              HasSubstr("needs tcgen05.wait::ld"));
}

TEST(Tcgen05RulesTest, MmaOverAnotherWarpsLoadWithoutFence) {
  EXPECT_THAT(
      Fault(Join({kAddress, kStore, kWaitStore, kLoad, kWaitLoad, "  bar.sync 0;\n", kAfter, kIssue})),
      HasSubstr("tcgen05.fence::before_thread_sync"));
}

TEST(Tcgen05RulesTest, CommitByAnotherThreadSaysNothing) {
  EXPECT_THAT(Fault(Join({kAddress, R"(
  setp.ne.u32 %p1, 0, 0;
  setp.eq.u32 %p3, %thread, 32;
  @!%leader bra ISSUED;
  tcgen05.mma.cta_group::1.kind::f16 [%tmem], %a, %b, %idesc, %p1;
ISSUED:
  @!%p3 bra COMMITTED;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];
COMMITTED:
)",
                          kWait, kAfter, kLoad})),
              HasSubstr("has not completed"));
}

TEST(Tcgen05RulesTest, AccumulatorGoesOnWithTheSameShapeOnly) {
  EXPECT_THAT(Fault(R"(
  setp.ne.u32 %p1, 0, 0;
  add.u32 %x0, %idesc, 0x20000;
  @!%leader bra ISSUED;
  tcgen05.mma.cta_group::1.kind::f16 [%tmem], %a, %b, %idesc, %p1;
  tcgen05.mma.cta_group::1.kind::f16 [%tmem], %a, %b, %x0, %p1;
ISSUED:
)"),
              HasSubstr("different kinds or shapes"));
}

TEST(Tcgen05RulesTest, UninitialisedTensorMemory) {
  EXPECT_THAT(Fault(Join({kAddress, kLoad})), HasSubstr("column 0 is read but was never written"));
  EXPECT_THAT(Fault(Join({R"(
  setp.eq.u32 %p1, 0, 0;
  @!%leader bra ISSUED;
  tcgen05.mma.cta_group::1.kind::f16 [%tmem], %a, %b, %idesc, %p1;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];
ISSUED:
)",
                          kWait})),
              AllOf(HasSubstr("never written"), HasSubstr("tcgen05.mma")));
}

// ---- who may reach what

TEST(Tcgen05RulesTest, LaneOutsideTheWarpsQuarter) {
  EXPECT_THAT(
      Fault(R"(
  tcgen05.ld.sync.aligned.32x32b.x1.b32 {%x100}, [%tmem];
)"),
      AllOf(HasSubstr("warp 3 reaches lanes 96-127"), HasSubstr("the address 0x0 is lane 0, column 0")));
}

TEST(Tcgen05RulesTest, ShapeNotAtItsLanes) {
  EXPECT_THAT(
      Fault(Join({kAddress, R"(
  mov.u32 %x100, 0;
  add.u32 %x90, %x90, 0x80000;
  tcgen05.st.sync.aligned.16x256b.x1.b32 [%x90], {%x100, %x100, %x100, %x100};
)"})),
      HasSubstr(".16x256b starts at lane 96 or 112 of the warp's quarter; the address 0x680000 is lane 104"));
}

TEST(Tcgen05RulesTest, ColumnsOutsideTheAllocation) {
  EXPECT_THAT(Fault(Join({kAddress, "  add.u32 %x90, %x90, 512;\n", kLoad})),
              HasSubstr("touches columns 512-512 of tensor memory; allocated: 0-511"));
  EXPECT_THAT(Fault(Join({"  add.u32 %tmem, %tmem, 500;\n", kIssue})),
              HasSubstr("D of tcgen05.mma touches columns 500-515"));
}

TEST(Tcgen05RulesTest, AddressesMustAgree) {
  EXPECT_THAT(Fault(Join({kAddress, "  add.u32 %x90, %x90, %lane;\n", kLoad})),
              HasSubstr("all lanes must give the same tensor memory address"));
}

// ---- convergence

TEST(Tcgen05RulesTest, LoadUnderABranchOfOneThread) {
  EXPECT_THAT(Fault(Join({kAddress, "  @!%leader bra SKIPPED;\n", kLoad, "SKIPPED:\n"})),
              AllOf(HasSubstr("needs all lanes of the warp"), HasSubstr("0x1")));
}

TEST(Tcgen05RulesTest, MmaByAWholeWarp) {
  EXPECT_THAT(Fault(R"(
  setp.ne.u32 %p1, 0, 0;
  tcgen05.mma.cta_group::1.kind::f16 [%tmem], %a, %b, %idesc, %p1;
)"),
              HasSubstr("issued by one thread"));
}

// ---- descriptors and shapes

TEST(Tcgen05RulesTest, DescriptorOfHopper) {
  TensorKernelArguments arguments = Arguments();
  arguments.a &= ~(uint64_t{1} << 46);
  EXPECT_THAT(Fault(kIssue, arguments), AllOf(HasSubstr("A: matrix descriptor"), HasSubstr("form of sm_90")));
}

TEST(Tcgen05RulesTest, MisalignedTile) {
  TensorKernelArguments arguments = Arguments();
  arguments.a += 128 >> 4;
  EXPECT_THAT(Fault(kIssue, arguments), HasSubstr("align the tile to 1024 bytes"));
}

TEST(Tcgen05RulesTest, RowMajorDataWithoutStrides) {
  TensorKernelArguments arguments = Arguments();
  arguments.b = uint64_t{1} << 46 | 16384 >> 4;
  EXPECT_THAT(Fault(kIssue, arguments), HasSubstr("SBO is 0 but separates the groups of 8 rows"));
}

TEST(Tcgen05RulesTest, OperandOutsideSharedMemory) {
  TensorKernelArguments arguments = Arguments();
  arguments.b += (48 * 1024) >> 4;
  EXPECT_THAT(Fault(kIssue, arguments), AllOf(HasSubstr("out of bounds"), HasSubstr("asynchronous read")));
}

TEST(Tcgen05RulesTest, ShapesThatTheKindDoesNotTake) {
  TensorKernelArguments arguments = Arguments();
  arguments.idesc = (arguments.idesc & ~0x1f000000u) | 6u << 24;
  EXPECT_THAT(Fault(kIssue, arguments), HasSubstr("M is 96; cta_group::1 takes 64 or 128"));
  arguments.idesc = Arguments().idesc | 63u << 17;
  EXPECT_THAT(Fault(kIssue, arguments), HasSubstr("N is 504"));
  arguments.idesc = Arguments().idesc | 7u << 7;
  EXPECT_THAT(Fault(kIssue, arguments), HasSubstr("format of A"));
}

// The instruction descriptor taken from the upper half of a matrix descriptor.
TEST(Tcgen05RulesTest, InstructionDescriptorFromTheWrongPlace) {
  TensorKernelArguments arguments = Arguments();
  arguments.idesc = static_cast<uint32_t>(arguments.a >> 32);
  EXPECT_THAT(Fault(kIssue, arguments), HasSubstr("instruction descriptor of kind::f16"));
}

// M = 64 with A in tensor memory: both in the same half of each quarter.
TEST(Tcgen05RulesTest, AAndDOfM64InDifferentHalves) {
  TensorKernelArguments arguments = Arguments();
  arguments.idesc = (arguments.idesc & ~0x1f000000u) | 4u << 24;
  EXPECT_THAT(Fault(R"(
  setp.ne.u32 %p1, 0, 0;
  add.u32 %x0, %tmem, 0x100100;
  @!%leader bra ISSUED;
  tcgen05.mma.cta_group::1.kind::f16 [%tmem], [%x0], %b, %idesc, %p1;
ISSUED:
)",
                    arguments),
              HasSubstr("layout F needs both in the same half"));
}

// ---- shared memory and the async proxy

TEST(Tcgen05RulesTest, OrdinaryStoreWithoutProxyFence) {
  EXPECT_THAT(Fault(Join({R"(
  mov.u32 %x0, 0;
  shl.b32 %x1, %thread, 2;
  add.u32 %x1, %x1, %tile;
  st.shared.b32 [%x1], %x0;
  bar.sync 0;
)",
                          kIssue})),
              HasSubstr("fence.proxy.async"));
}

TEST(Tcgen05RulesTest, OperandOverwrittenWhileTheMmaRuns) {
  EXPECT_THAT(Fault(Join({kIssue, R"(
  mov.u32 %x0, 0;
  @%leader st.shared.b32 [%tile], %x0;
)"})),
              HasSubstr("asynchronous"));
}

// ---- allocation

TEST(Tcgen05RulesTest, ExitWithoutDealloc) {
  EXPECT_THAT(Fault("  bra FREED;\n"), HasSubstr("512 columns of tensor memory at column 0 not freed"));
}

std::string AllocFault(std::string_view lines) {
  const std::string body =
      std::string("  .reg .b32 %address;\n  @!%first_warp bra DONE;\n") + std::string(lines) + "DONE:\n";
  std::vector<uint32_t> out;
  const absl::Status status = RunTensorKernel(TensorKernel(body, 0), Arguments(), {}, 16, &out);
  EXPECT_FALSE(status.ok()) << "ran without a fault";
  return std::string(status.message());
}

TEST(Tcgen05RulesTest, Allocation) {
  EXPECT_THAT(AllocFault("  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 48;\n"),
              HasSubstr("48 columns; must be a power of two from 32 to 512"));
  EXPECT_THAT(AllocFault("  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
                         "  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;\n"),
              HasSubstr("after tcgen05.relinquish_alloc_permit"));
  EXPECT_THAT(AllocFault("  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;\n"
                         "  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 64;\n"),
              HasSubstr("later allocations of a CTA must not be larger"));
  EXPECT_THAT(AllocFault("  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 512;\n"
                         "  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;\n"),
              AllOf(HasSubstr("deadlock"), HasSubstr("tcgen05.alloc of 32 columns")));
  EXPECT_THAT(AllocFault("  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 64;\n"
                         "  ld.shared.b32 %address, [slot];\n"
                         "  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %address, 32;\n"),
              HasSubstr("dealloc of 32 columns at column 0, which were allocated as 64"));
  EXPECT_THAT(AllocFault("  mov.u32 %address, 64;\n"
                         "  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %address, 32;\n"),
              HasSubstr("which tcgen05.alloc has not returned"));
  EXPECT_THAT(AllocFault("  tcgen05.dealloc.cta_group::1.sync.aligned.b32 [slot], 32;\n"),
              HasSubstr("takes the tensor memory address itself, in a register"));
  EXPECT_THAT(AllocFault("  tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 32;\n"
                         "  tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\n"),
              HasSubstr("must have the same"));
}

TEST(Tcgen05RulesTest, DeallocWhileAnMmaRuns) {
  EXPECT_THAT(Fault(R"(
  setp.ne.u32 %p1, 0, 0;
  @!%leader bra ISSUED;
  tcgen05.mma.cta_group::1.kind::f16 [%tmem], %a, %b, %idesc, %p1;
ISSUED:
)"),
              HasSubstr("is freed while tcgen05.mma"));
}

TEST(Tcgen05RulesTest, PairWithoutAPeer) {
  EXPECT_THAT(Fault("", Arguments(), 2), HasSubstr("has no peer: the cluster has 1 CTAs"));
}

// ---- commit

TEST(Tcgen05RulesTest, CommitOnWhatIsNoBarrier) {
  EXPECT_THAT(Fault(R"(
  @!%leader bra ISSUED;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%tile];
ISSUED:
)"),
              HasSubstr("mbarrier"));
}

TEST(Tcgen05RulesTest, WaitThatNothingEnds) {
  EXPECT_THAT(Fault(kWait), AllOf(HasSubstr("deadlock"), HasSubstr("mbarrier")));
}

// ---- what is not modelled says so

TEST(Tcgen05RulesTest, StopsAtWhatIsNotModelled) {
  const auto issue = [](std::string_view line) {
    return Join({"  setp.ne.u32 %p1, 0, 0;\n  add.u32 %x0, %tmem, 64;\n  @!%leader bra ISSUED;\n  ", line,
                 "\nISSUED:\n"});
  };
  EXPECT_THAT(Fault(issue("tcgen05.mma.sp.cta_group::1.kind::f16 [%tmem], %a, %b, [%x0], %idesc, %p1;")),
              AllOf(HasSubstr("unsupported instruction"), HasSubstr("tcgen05.mma with .sp")));
  EXPECT_THAT(Fault(issue("tcgen05.shift.cta_group::1.down [%tmem];")),
              AllOf(HasSubstr("unsupported instruction"), HasSubstr("tcgen05.shift")));
  TensorKernelArguments arguments = Arguments();
  arguments.idesc |= 1 << 2;
  EXPECT_THAT(Fault(issue("tcgen05.mma.cta_group::1.kind::f16 [%tmem], %a, %b, %idesc, %p1;"), arguments),
              AllOf(HasSubstr("unsupported instruction"), HasSubstr("sparse A (bit 2) with kind::f16")));
  InstructionDescriptor desc;
  desc.a_type = desc.b_type = ElementType::kE2M1;
  desc.n = 16;
  desc.scale_type = ElementType::kUE4M3;
  desc.k96 = true;
  arguments.idesc = *EncodeInstructionDescriptor(MmaKind::kMxF4NvF4, desc);
  EXPECT_THAT(
      Fault(issue("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%tmem], %a, %b, "
                  "%idesc, [%x0], [%x0], %p1;"),
            arguments),
      AllOf(HasSubstr("unsupported instruction"), HasSubstr("K = 96 (bit 31)")));
}

// ---- scale factors must be in all quarters

TEST(Tcgen05RulesTest, ScaleFactorsInOneQuarterOnly) {
  TensorKernelArguments arguments = Arguments();
  InstructionDescriptor desc;
  desc.a_type = desc.b_type = ElementType::kE2M1;
  desc.n = 16;
  desc.scale_type = ElementType::kUE4M3;
  arguments.idesc = *EncodeInstructionDescriptor(MmaKind::kMxF4NvF4, desc);
  EXPECT_THAT(Fault(Join({kAddress, R"(
  mov.u32 %x100, 0x38383838;
  add.u32 %x100, %x100, %warp;
  tcgen05.st.sync.aligned.32x32b.x8.b32 [%x90 + 64], {%x100, %x100, %x100, %x100, %x100, %x100, %x100, %x100};
  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
  add.u32 %x0, %tmem, 64;
  setp.ne.u32 %p1, 0, 0;
  @!%leader bra ISSUED;
  tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X [%tmem], %a, %b, %idesc, [%x0], [%x0], %p1;
  tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [bar];
ISSUED:
)",
                          kWait}),
                    arguments),
              HasSubstr("must be the same in all quarters"));
}

}  // namespace
}  // namespace tessera::ptx
