// Instructions among the lanes of a warp, by hand and against plain loops over the lanes.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/ptx/testing/mini_kernel.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

using Lanes = std::array<uint32_t, 32>;
constexpr uint32_t kAll = 0xffffffff;

// `code` computes %d of each lane from its own %a (32 bits); %lane is the lane. %p, %x are scratch.
Lanes RunLanes(const std::string& code, const Lanes& values) {
  MiniRunner runner;
  for (int l = 0; l < 32; ++l) runner.words[l] = values[l];
  const absl::Status status = runner.Run(
      MiniKernel(Cat(".reg .b32 %a, %d, %lane, %x;\n.reg .b64 %at;\n.reg .pred %p;\nmov.u32 %lane, %laneid;\n"
                     "mul.wide.u32 %at, %lane, 8;\nadd.u64 %at, %rd0, %at;\nld.global.b32 %a, [%at];\n",
                     code, "\nst.global.b32 [%at], %d;\n")));
  EXPECT_TRUE(status.ok()) << code << "\n" << status;
  Lanes results;
  for (int l = 0; l < 32; ++l) results[l] = static_cast<uint32_t>(runner.words[l]);
  return results;
}

Lanes Fill(const std::function<uint32_t(int)>& f) {
  Lanes lanes;
  for (int l = 0; l < 32; ++l) lanes[l] = f(l);
  return lanes;
}

const Lanes kValues = Fill([](int l) { return 0x9e3779b9u * (l + 1); });

// The value of lane from(l), or the lane's own where that leaves its segment, which the predicate says.
void ExpectShuffle(const std::string& operands, const std::function<int(int)>& from,
                   const std::function<bool(int)>& inside) {
  const auto source = [&](int l) { return inside(l) ? from(l) : l; };
  EXPECT_EQ(RunLanes("shfl.sync." + operands + ", 0xffffffff;", kValues),
            Fill([&](int l) { return kValues[source(l)]; }))
      << operands;
  std::string with_predicate = operands;
  with_predicate.replace(with_predicate.find("%d"), 2, "%x|%p");
  EXPECT_EQ(RunLanes("shfl.sync." + with_predicate + ", 0xffffffff;\nselp.u32 %d, 1, 0, %p;", kValues),
            Fill([&](int l) { return uint32_t{inside(l)}; }))
      << operands;
}

TEST(Shuffle, OfTheWholeWarp) {
  ExpectShuffle(
      "up.b32 %d, %a, 1, 0", [](int l) { return l - 1; }, [](int l) { return l >= 1; });
  ExpectShuffle(
      "down.b32 %d, %a, 5, 31", [](int l) { return l + 5; }, [](int l) { return l + 5 <= 31; });
  ExpectShuffle(
      "bfly.b32 %d, %a, 21, 31", [](int l) { return l ^ 21; }, [](int) { return true; });
  ExpectShuffle(
      "idx.b32 %d, %a, 9, 31", [](int) { return 9; }, [](int) { return true; });
}

// c = 0x181f: segments of 8 lanes; for up its clamp is 0.
TEST(Shuffle, OfSegments) {
  ExpectShuffle(
      "up.b32 %d, %a, 3, 0x1800", [](int l) { return l - 3; }, [](int l) { return l % 8 >= 3; });
  ExpectShuffle(
      "down.b32 %d, %a, 3, 0x181f", [](int l) { return l + 3; }, [](int l) { return l % 8 + 3 < 8; });
  ExpectShuffle(
      "bfly.b32 %d, %a, 4, 0x181f", [](int l) { return l ^ 4; }, [](int) { return true; });
  ExpectShuffle(
      "idx.b32 %d, %a, 6, 0x181f", [](int l) { return l / 8 * 8 + 6; }, [](int) { return true; });
  // A clamp below the segment's end.
  ExpectShuffle(
      "down.b32 %d, %a, 3, 0x1805", [](int l) { return l + 3; }, [](int l) { return l % 8 + 3 <= 5; });
}

TEST(Shuffle, IndexOfEachLane) {
  EXPECT_EQ(RunLanes("mul.lo.u32 %x, %lane, 7;\nshfl.sync.idx.b32 %d, %a, %x, 31, 0xffffffff;", kValues),
            Fill([](int l) { return kValues[l * 7 % 32]; }));
}

TEST(Vote, OfAllAndOfSomeLanes) {
  const std::string even = "and.b32 %x, %a, 1;\nsetp.eq.u32 %p1, %x, 0;\n";
  const std::string result = "\nselp.u32 %d, 1, 0, %p;";
  const Lanes same = Fill([](int) { return 4u; }), odd = Fill([](int) { return 5u; });
  const Lanes one = Fill([](int l) { return l == 17 ? 4u : 5u; });
  const struct {
    const char* mode;
    bool of_same, of_odd, of_one;
  } kCases[] = {{"all", true, false, false}, {"any", true, false, true}, {"uni", true, true, false}};
  for (const auto& c : kCases) {
    const std::string code = even + "vote.sync." + c.mode + ".pred %p, %p1, 0xffffffff;" + result;
    EXPECT_EQ(RunLanes(code, same), Fill([&](int) { return uint32_t{c.of_same}; })) << c.mode;
    EXPECT_EQ(RunLanes(code, odd), Fill([&](int) { return uint32_t{c.of_odd}; })) << c.mode;
    EXPECT_EQ(RunLanes(code, one), Fill([&](int) { return uint32_t{c.of_one}; })) << c.mode;
  }
  EXPECT_EQ(RunLanes(even + "vote.sync.ballot.b32 %d, %p1, 0xffffffff;", one),
            Fill([](int) { return 1u << 17; }));
  // Lanes 0 to 15 and the others, each among themselves.
  EXPECT_EQ(RunLanes(even + "setp.lt.u32 %p2, %lane, 16;\n@%p2 vote.sync.ballot.b32 %d, %p1, 0xffff;\n"
                            "@!%p2 vote.sync.ballot.b32 %d, %p1, 0xffff0000;",
                     Fill([](int l) { return l % 3 == 0 ? 2u : 1u; })),
            Fill([](int l) {
              uint32_t ballot = 0;
              for (int other = l / 16 * 16; other < l / 16 * 16 + 16; ++other) {
                ballot |= uint32_t{other % 3 == 0} << other;
              }
              return ballot;
            }));
}

TEST(Match, AnyAndAll) {
  const Lanes thirds = Fill([](int l) { return 100u + l % 3; });
  const auto alike = [&](int l) {
    uint32_t mask = 0;
    for (int other = 0; other < 32; ++other) mask |= uint32_t{thirds[l] == thirds[other]} << other;
    return mask;
  };
  EXPECT_EQ(RunLanes("match.any.sync.b32 %d, %a, 0xffffffff;", thirds), Fill(alike));
  // 64 bits that differ in the upper half alone.
  EXPECT_EQ(RunLanes("mov.b64 %rd1, {%lane, %a};\nand.b64 %rd1, %rd1, 0xffffffff00000000;\n"
                     "match.any.sync.b64 %d, %rd1, 0xffffffff;",
                     thirds),
            Fill(alike));
  const std::string all = "match.all.sync.b32 %d|%p, %a, 0xffffffff;\n@%p add.u32 %d, %d, 1;";
  EXPECT_EQ(RunLanes(all, thirds), Fill([](int) { return 0u; }));
  EXPECT_EQ(RunLanes(all, Fill([](int) { return 7u; })), Fill([](int) { return kAll + 1; }));
}

TEST(Redux, IntegersOfAllAndOfSomeLanes) {
  const struct {
    const char* op;
    std::function<uint32_t(uint32_t, uint32_t)> f;
  } kCases[] = {
      {"add.u32", [](uint32_t a, uint32_t b) { return a + b; }},
      {"add.s32", [](uint32_t a, uint32_t b) { return a + b; }},
      {"min.u32", [](uint32_t a, uint32_t b) { return std::min(a, b); }},
      {"max.u32", [](uint32_t a, uint32_t b) { return std::max(a, b); }},
      {"min.s32", [](uint32_t a, uint32_t b) { return uint32_t(std::min(int32_t(a), int32_t(b))); }},
      {"max.s32", [](uint32_t a, uint32_t b) { return uint32_t(std::max(int32_t(a), int32_t(b))); }},
      {"and.b32", [](uint32_t a, uint32_t b) { return a & b; }},
      {"or.b32", [](uint32_t a, uint32_t b) { return a | b; }},
      {"xor.b32", [](uint32_t a, uint32_t b) { return a ^ b; }},
  };
  for (const auto& c : kCases) {
    const auto reduce = [&](int begin, int end) {
      uint32_t result = kValues[begin];
      for (int l = begin + 1; l < end; ++l) result = c.f(result, kValues[l]);
      return result;
    };
    EXPECT_EQ(RunLanes(Cat("redux.sync.", c.op, " %d, %a, 0xffffffff;"), kValues),
              Fill([&](int) { return reduce(0, 32); }))
        << c.op;
    EXPECT_EQ(RunLanes(Cat("setp.lt.u32 %p2, %lane, 5;\n@%p2 redux.sync.", c.op,
                           " %d, %a, 0x1f;\n@!%p2 redux.sync.", c.op, " %d, %a, 0xffffffe0;"),
                       kValues),
              Fill([&](int l) { return l < 5 ? reduce(0, 5) : reduce(5, 32); }))
        << c.op;
  }
}

TEST(Redux, FloatsPassNanOverUnlessAsked) {
  const auto bits = [](float f) { return std::bit_cast<uint32_t>(f); };
  Lanes values = Fill([&](int l) { return bits(l - 20.5f); });
  values[3] = bits(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(RunLanes("redux.sync.min.f32 %d, %a, 0xffffffff;", values)[9], bits(-20.5f));
  EXPECT_EQ(RunLanes("redux.sync.max.f32 %d, %a, 0xffffffff;", values)[9], bits(10.5f));
  EXPECT_EQ(RunLanes("redux.sync.max.abs.f32 %d, %a, 0xffffffff;", values)[9], bits(20.5f));
  EXPECT_TRUE(
      std::isnan(std::bit_cast<float>(RunLanes("redux.sync.max.NaN.f32 %d, %a, 0xffffffff;", values)[9])));
}

TEST(Elect, TheLowestLaneOfTheMask) {
  EXPECT_EQ(RunLanes("elect.sync %d|%p, 0xffffffff;\n@%p add.u32 %d, %d, 100;", kValues),
            Fill([](int l) { return l == 0 ? 100u : 0u; }));
  EXPECT_EQ(RunLanes("mov.u32 %d, 0;\nsetp.ge.u32 %p2, %lane, 6;\n@%p2 elect.sync %d|%p, 0xffffffc0;\n"
                     "@!%p2 bra DONE;\n@%p add.u32 %d, %d, 100;\nDONE:",
                     kValues),
            Fill([](int l) { return l < 6    ? 0u
                                    : l == 6 ? 106u
                                             : 6u; }));
}

TEST(ActiveMask, OfABranch) {
  EXPECT_EQ(RunLanes("mov.u32 %d, 0;\nsetp.lt.u32 %p1, %lane, 3;\n@%p1 activemask.b32 %d;", kValues),
            Fill([](int l) { return l < 3 ? 7u : 0u; }));
}

}  // namespace
}  // namespace tessera::ptx
