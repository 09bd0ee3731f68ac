#include "kernels/cpu/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace tessera::cpu {
namespace {

TEST(IsaTest, PortableIsAlwaysThereAndTheBestIsTheLast) {
  const std::vector<Isa> isas = SupportedIsas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::kPortable);
  EXPECT_EQ(isas.back(), BestIsa());
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
}

TEST(IsaTest, ForcingASupportedSetTakesEffect) {
  for (Isa isa : SupportedIsas()) {
    EXPECT_TRUE(ForceIsa(isa).ok());
    EXPECT_EQ(ActiveIsa(), isa);
  }
}

TEST(IsaTest, ForcingAnUnsupportedSetIsRefused) {
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (isa <= BestIsa()) continue;
    EXPECT_EQ(ForceIsa(isa).code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(IsaTest, TheEnvironmentIsChecked) {
  setenv("TESSERA_CPU_ISA", "portable", 1);
  EXPECT_TRUE(CheckIsaEnvironment().ok());
  setenv("TESSERA_CPU_ISA", "mmx", 1);
  const absl::Status status = CheckIsaEnvironment();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("TESSERA_CPU_ISA=mmx"), absl::string_view::npos) << status;
  unsetenv("TESSERA_CPU_ISA");
  EXPECT_TRUE(CheckIsaEnvironment().ok());
}

}  // namespace
}  // namespace tessera::cpu
