// The parser: what it makes of each construct, and the messages for what it refuses.
#include "tests/ptx/parser/parser.h"

#include <bit>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ptx/parser/control_flow.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kHeader = ".version 9.0\n.target sm_90a\n.address_size 64\n";

std::unique_ptr<Module> Parse(std::string_view text) {
  auto module = ParseModule(Cat(kHeader, text), "test.ptx");
  EXPECT_TRUE(module.ok()) << module.status();
  return module.ok() ? *std::move(module) : nullptr;
}

// The only function's body around these lines.
std::unique_ptr<Module> ParseBody(std::string_view body) {
  return Parse(Cat(".entry k()\n{\n", body, "\n}\n"));
}

std::string ErrorOf(std::string_view text) {
  return std::string(ParseModule(Cat(kHeader, text), "test.ptx").status().message());
}

TEST(Parser, InstructionWithGuardModifiersAndOperands) {
  const auto module = ParseBody(R"(.reg .pred %p<2>;
.reg .b32 %r<5>;
.reg .b64 %rd<2>;
@!%p1 ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%r0, %r1, _, %r3}, [%rd1+-16];)");
  const Instruction& i = module->functions[0]->body[0];
  EXPECT_EQ(i.opcode, "ld");
  EXPECT_THAT(i.modifiers, ElementsAre("global", "nc", "L1::no_allocate", "L2::128B", "v4", "u32"));
  EXPECT_TRUE(i.guard.IsRegister() && i.guard.negated);
  EXPECT_EQ(i.where.line, 9);
  ASSERT_EQ(i.operands.size(), 2u);
  ASSERT_EQ(i.operands[0].kind, Operand::Kind::kVector);
  EXPECT_TRUE(i.operands[0].elements[2].IsSink());
  EXPECT_EQ(i.operands[0].elements[3].name, "%r3");
  ASSERT_EQ(i.operands[1].kind, Operand::Kind::kAddress);
  EXPECT_EQ(static_cast<int64_t>(i.operands[1].value), -16);
  EXPECT_EQ(i.operands[1].elements[0].type, Type::kB64);
  EXPECT_EQ(i.text, "ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%r0, %r1, _, %r3}, [%rd1+-16]");
}

TEST(Parser, TensorCopyOperands) {
  const auto module = ParseBody(R"(.reg .b32 %r<5>;
.reg .b64 %rd<3>;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%r1], [%rd1, {%r2, %r3}], [%r4], %rd2;)");
  const Instruction& i = module->functions[0]->body[0];
  EXPECT_THAT(i.modifiers, ElementsAre("async", "bulk", "tensor", "2d", "shared::cluster", "global", "tile",
                                       "mbarrier::complete_tx::bytes", "L2::cache_hint"));
  ASSERT_EQ(i.operands.size(), 4u);
  ASSERT_EQ(i.operands[1].elements.size(), 2u);
  EXPECT_EQ(i.operands[1].elements[1].elements[1].name, "%r3");
}

TEST(Parser, Constants) {
  const auto module = ParseBody(R"(.reg .b32 %r<2>;
add.u32 %r0, %r1, 0x1F;
add.u32 %r0, %r1, -12;
add.u32 %r0, %r1, 017;
add.u32 %r0, %r1, 0b101;
add.u32 %r0, %r1, 7U;
add.f32 %r0, %r1, 0f3F800000;
add.f64 %r0, %r1, 0dBFF0000000000000;
add.f32 %r0, %r1, -1.5;
add.f32 %r0, %r1, 2.5e-1;
add.u32 %r0, %r1, WARP_SZ;)");
  const auto value = [&](int k) { return module->functions[0]->body[k].operands[2]; };
  EXPECT_EQ(value(0).value, 0x1Fu);
  EXPECT_EQ(static_cast<int64_t>(value(1).value), -12);
  EXPECT_EQ(value(2).value, 15u);
  EXPECT_EQ(value(3).value, 5u);
  EXPECT_EQ(value(4).value, 7u);
  EXPECT_EQ(value(5).value, 0x3F800000u);
  EXPECT_EQ(value(5).type, Type::kF32);
  EXPECT_EQ(std::bit_cast<double>(value(6).value), -1.0);
  EXPECT_EQ(std::bit_cast<double>(value(7).value), -1.5);
  EXPECT_EQ(std::bit_cast<double>(value(8).value), 0.25);
  EXPECT_EQ(value(9).value, 32u);
}

TEST(Parser, ScopesHideNamesAndLabels) {
  // As inline assembly makes them: the same register and labels in each block, jumps outwards too.
  const auto module = ParseBody(R"(.reg .pred done;
{
.reg .b32 done;
WAIT: add.u32 done, done, 1;
bra WAIT;
bra OUTER;
}
{
WAIT: bra WAIT;
}
OUTER: not.pred done, done;)");
  const auto& body = module->functions[0]->body;
  EXPECT_EQ(body[0].operands[0].type, Type::kB32);
  EXPECT_EQ(body[1].operands[0].target, 0);
  EXPECT_EQ(body[2].operands[0].target, 4);
  EXPECT_EQ(body[3].operands[0].target, 3);
  EXPECT_EQ(body[4].operands[0].type, Type::kPred);
}

TEST(Parser, CallsPairsAndTables) {
  const auto module = Parse(R"(
.extern .func (.param .b32 r) f (.param .b64 a, .param .align 8 .b8 b[16]);
.entry k()
{
.reg .pred %p<3>;
.reg .b32 %r<5>;
.param .b64 p0;
.param .align 8 .b8 p1[16];
.param .b32 q;
call.uni (q), f, (p0, p1);
setp.lt.and.s32 %p0|%p1, %r1, %r2, !%p2;
T: .branchtargets A, B;
brx.idx %r1, T;
A:
B: ret;
}
)");
  const auto& body = module->Find("k")->body;
  EXPECT_EQ(body[0].operands[0].kind, Operand::Kind::kList);
  EXPECT_EQ(body[0].operands[1].function, module->Find("f"));
  EXPECT_EQ(body[0].operands[2].elements[1].variable->Size(), 16u);
  EXPECT_TRUE(body[1].operands[1].is_pair_second);
  EXPECT_TRUE(body[1].operands[4].negated);
  ASSERT_EQ(body[2].operands[1].elements.size(), 2u);
  EXPECT_EQ(body[2].operands[1].elements[1].target, 3);
}

TEST(Parser, KernelSignatureAndDirectives) {
  const auto module = Parse(R"(
.visible .entry k(.param .u32 a, .param .u64 .ptr .global .align 16 b, .param .align 64 .b8 c[128], .param .u8 d)
.maxntid 128, 2, 1
.minnctapersm 2
.explicitcluster
.reqnctapercluster 2, 1, 1
{ ret; }
)");
  const Function& f = *module->functions[0];
  EXPECT_THAT(f.max_threads, ElementsAre(128, 2, 1));
  EXPECT_THAT(f.required_cluster, ElementsAre(2, 1, 1));
  EXPECT_EQ(f.params[1]->address, 8u);
  EXPECT_EQ(f.params[2]->address, 64u);
  EXPECT_EQ(f.params[3]->address, 192u);
  EXPECT_EQ(f.param_bytes, 193u);
}

TEST(Parser, InitialisersAndSourceLocations) {
  const auto module = Parse(R"(
.file 1 "kernels/a.cu", 12345, 678
.global .align 4 .b8 bytes[6] = {1, 2, 0xFF};
.global .align 8 .u64 pointer = generic(bytes)+4;
.const .align 4 .f32 floats[2] = {0f3F800000, -2.5};
.global .u32 table[2][2] = {{1, 2}, {3, 4}};
.extern .shared .align 16 .b8 dynamic[];
.entry k()
{
.loc 1 42 7
.reg .b32 %r<2>;
mov.u32 %r0, 1;
.loc 1 43 1, function_name $L__info_string0, inlined_at 1 42 7
mov.u32 %r1, 1;
}
.section .debug_str { $L__info_string0: .b8 95, 0 }
)");
  EXPECT_THAT(module->variables[0]->initial, ElementsAre(1, 2, 255, 0, 0, 0));
  ASSERT_EQ(module->variables[1]->relocations.size(), 1u);
  EXPECT_EQ(module->variables[1]->relocations[0].symbol, "bytes");
  EXPECT_EQ(module->variables[1]->relocations[0].addend, 4);
  EXPECT_THAT(module->variables[2]->initial, ElementsAre(0, 0, 0x80, 0x3F, 0, 0, 0x20, 0xC0));
  EXPECT_EQ(module->variables[3]->elements, 4u);
  EXPECT_EQ(module->variables[4]->elements, 0u);
  const auto& body = module->functions[0]->body;
  EXPECT_EQ(module->files[body[0].where.file], "kernels/a.cu");
  EXPECT_EQ(body[0].where.source_line, 42);
  EXPECT_EQ(body[1].where.source_line, 43);
}

TEST(Parser, ErrorsNameLineAndExpectation) {
  EXPECT_THAT(ErrorOf(".entry k()\n{\nbra NOWHERE;\n}"), HasSubstr("test.ptx:6: unknown name 'NOWHERE'"));
  EXPECT_THAT(ErrorOf(".entry k()\n{\n.reg .b33 %r<2>;\n}"),
              HasSubstr("test.ptx:6: unknown register type .b33"));
  EXPECT_THAT(ErrorOf(".entry k()\n{\nadd.u32 5 6;\n}"), HasSubstr("expected ',' before '6'"));
  EXPECT_THAT(ErrorOf(".entry k()\n{\n"), HasSubstr("does not end"));
  EXPECT_THAT(ErrorOf(".entry k()\n{\nL: ret;\nL: ret;\n}"), HasSubstr("label L is already there"));
  EXPECT_THAT(ErrorOf(".frob 1;"), HasSubstr("unknown statement '.frob'"));
  EXPECT_THAT(ErrorOf(".global .align 3 .b8 x[4];"), HasSubstr("alignment 3 is no power of two"));
  EXPECT_THAT(ErrorOf(".global .b8 x[2] = {1, 2, 3};"), HasSubstr("has 3 bytes, the variable 2"));
  EXPECT_THAT(ErrorOf("/* no end"), HasSubstr("comment that does not end"));
  EXPECT_THAT(ErrorOf(".global .b8 x = \x01;"), HasSubstr("byte 1 is no part of PTX"));
  EXPECT_THAT(std::string(ParseModule("hello", "x").status().message()), HasSubstr("unknown statement"));
  EXPECT_THAT(std::string(ParseModule("", "x").status().message()), HasSubstr("no .target"));
  EXPECT_THAT(ErrorOf(".address_size 32"), HasSubstr("64-bit"));
}

TEST(ControlFlow, LoopsComeWholeBeforeTheirExits) {
  // The exit stands before the loop's body in the text.
  const auto module = ParseBody(R"(.reg .pred %p<4>;
HEAD: @%p0 bra BODY;
EXIT: ret;
BODY: @%p1 bra OTHER;
bra HEAD;
OTHER: @%p2 bra HEAD;
bra EXIT;)");
  Function& f = *module->functions[0];
  OrderBlocks(f);
  const auto at = [&](int k) { return f.body[k].priority; };
  EXPECT_EQ(at(0), 0u);
  for (const int body : {2, 3, 4}) EXPECT_LT(at(body), at(1));
  EXPECT_GT(at(1), at(5));  // bra EXIT leaves the loop and comes before its target
}

TEST(ControlFlow, JoinsComeAfterBothArms) {
  const auto module = ParseBody(R"(.reg .pred %p<4>;
@%p0 bra B;
A: bra J;
J: ret;
B: bra J;)");
  Function& f = *module->functions[0];
  OrderBlocks(f);
  EXPECT_LT(f.body[1].priority, f.body[2].priority);
  EXPECT_LT(f.body[3].priority, f.body[2].priority);
}

}  // namespace
}  // namespace tessera::ptx
