// Loads and stores of every width and vector, atomics, hints, and the instructions that are there for their time alone.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ptx/testing/mini_kernel.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {
namespace {

constexpr char kLane[] = "mov.u32 %r1, %tid.x;\n";

// Runs the body on `words`, which it changes.
void RunOn(const std::string& body, std::vector<uint64_t>* words, uint32_t shared = 0,
           uint32_t threads = 32) {
  MiniRunner runner;
  runner.words = *words;
  runner.config.dynamic_shared_bytes = shared;
  runner.config.block.x = threads;
  const absl::Status status = runner.Run(MiniKernel(body));
  EXPECT_TRUE(status.ok()) << body << "\n" << status;
  *words = runner.words;
}

// Bytes 0, 1, 2, ... with every other one above 127.
std::vector<uint64_t> Pattern() {
  std::vector<uint64_t> words(256);
  uint8_t* bytes = reinterpret_cast<uint8_t*>(words.data());
  for (int i = 0; i < 1024; ++i) bytes[i] = static_cast<uint8_t>(i * 37 + (i % 2) * 128);
  return words;
}

// Each lane copies an element or a vector from the first kilobyte to the second, whose other bytes stay.
TEST(Memory, VectorsOfEveryWidth) {
  for (const std::string modifiers : {"", ".volatile", ".relaxed.gpu", ".L1::no_allocate"}) {
    for (const int bits : {8, 16, 32, 64}) {
      for (const int count : {1, 2, 4}) {
        if (bits * count > 128) continue;
        const int bytes = bits / 8 * count;
        std::string vector = "";
        for (int k = 0; k < count; ++k) {
          vector += Cat(k ? ", " : "", bits == 64 ? "%rd" : bits == 32 ? "%r" : "%rs", 10 + k);
        }
        if (count > 1) vector = "{" + vector + "}";
        const std::string type = Cat(count > 1 ? Cat(".v", count) : std::string(), ".b", bits);
        std::vector<uint64_t> words = Pattern(), want = words;
        // Backwards: lane l writes where lane 31 - l read.
        RunOn(Cat(kLane, "mul.wide.u32 %rd1, %r1, ", bytes,
                  ";\nadd.u64 %rd1, %rd0, %rd1;\nsub.u32 %r2, 31, %r1;\n", "mul.wide.u32 %rd2, %r2, ", bytes,
                  ";\nadd.u64 %rd2, %rd0, %rd2;\nld", modifiers, ".global", type, " ", vector,
                  ", [%rd1];\nst", modifiers, ".global", type, " [%rd2+1024], ", vector, ";\n"),
              &words);
        const auto* from = reinterpret_cast<const uint8_t*>(want.data());
        auto* to = reinterpret_cast<uint8_t*>(want.data()) + 1024;
        for (int l = 0; l < 32; ++l) std::memcpy(to + (31 - l) * bytes, from + l * bytes, bytes);
        EXPECT_EQ(words, want) << modifiers << type;
      }
    }
  }
}

TEST(Memory, NarrowValuesAreExtendedByTheirSign) {
  std::vector<uint64_t> words(256);
  words[0] = 0x80ff'8001'7f80'fe02;
  RunOn(Cat(kLane, "ld.global.s8 %r2, [%rd0+1];\nld.global.u8 %r3, [%rd0+1];\nld.global.s16 %r4, [%rd0+6];\n",
            "ld.global.u16 %r5, [%rd0+6];\nld.global.s32 %rd5, [%rd0+4];\nld.global.s8 %rs1, [%rd0+2];\n",
            "st.global.b32 [%rd0+8], %r2;\nst.global.b32 [%rd0+12], %r3;\nst.global.b32 [%rd0+16], %r4;\n",
            "st.global.b32 [%rd0+20], %r5;\nst.global.b64 [%rd0+24], %rd5;\nst.global.b16 [%rd0+32], %rs1;\n",
            "st.global.u8 [%rd0+40], %r4;\n"),
        &words);
  EXPECT_EQ(words[1], 0x0000'00fe'ffff'fffe);
  EXPECT_EQ(words[2], 0x0000'80ff'ffff'80ff);
  EXPECT_EQ(words[3], 0xffff'ffff'80ff'8001);
  EXPECT_EQ(words[4], 0xff80u);
  EXPECT_EQ(words[5], 0xffu);  // the low byte alone
}

// They change nothing, and take an address that holds something.
TEST(Memory, HintsAndPolicies) {
  std::vector<uint64_t> words = Pattern(), want = words;
  RunOn(
      "createpolicy.fractional.L2::evict_first.b64 %rd3, 1.0;\n"
      "prefetch.global.L2 [%rd0];\nprefetch.global.L1 [%rd0+8];\nprefetchu.L1 [%rd0];\n"
      "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%r1, %r2, %r3, %r4}, [%rd0+16], %rd3;\n"
      "ld.global.L2::128B.u32 %r5, [%rd0];\n"
      "st.global.L1::evict_last.L2::cache_hint.v4.u32 [%rd0+1024], {%r1, %r2, %r3, %r4}, %rd3;\n"
      "st.global.cs.u32 [%rd0+1040], %r5;\n",
      &words);
  want[128] = want[2];
  want[129] = want[3];
  want[130] = (want[130] & ~uint64_t{0xffffffff}) | static_cast<uint32_t>(want[0]);
  EXPECT_EQ(words, want);
}

// All lanes at one place: what is left is what every order leaves, and the old values tell of one order.
struct AtomicCase {
  std::string op;  // with its type
  int bits;
  uint64_t start;
  std::function<uint64_t(uint64_t, uint64_t)> f;
};

uint64_t Float(float f) { return std::bit_cast<uint32_t>(f); }
float AsFloat(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }

TEST(Atomics, EveryOperationInGlobalAndSharedMemory) {
  const std::vector<AtomicCase> cases = {
      {"add.u32", 32, 0xfffffff0, [](uint64_t a, uint64_t b) { return uint64_t{uint32_t(a + b)}; }},
      {"add.s32", 32, 5, [](uint64_t a, uint64_t b) { return uint64_t{uint32_t(a + b)}; }},
      {"add.u64", 64, ~uint64_t{20}, [](uint64_t a, uint64_t b) { return a + b; }},
      {"min.u32", 32, 40, [](uint64_t a, uint64_t b) { return std::min(a, b); }},
      {"min.s32", 32, 0xfffffffb, [](uint64_t a, uint64_t b) { return int32_t(a) < int32_t(b) ? a : b; }},
      {"max.s32", 32, 0xfffffffb, [](uint64_t a, uint64_t b) { return int32_t(a) > int32_t(b) ? a : b; }},
      {"max.u64", 64, 7, [](uint64_t a, uint64_t b) { return std::max(a, b); }},
      {"and.b32", 32, 0xff, [](uint64_t a, uint64_t b) { return a & b; }},
      {"or.b32", 32, 0x40, [](uint64_t a, uint64_t b) { return a | b; }},
      {"xor.b64", 64, 0x1234567890, [](uint64_t a, uint64_t b) { return a ^ b; }},
      {"exch.b32", 32, 77, [](uint64_t, uint64_t b) { return b; }},
      {"inc.u32", 32, 3, [](uint64_t a, uint64_t b) { return a >= b ? 0 : a + 1; }},
      {"dec.u32", 32, 3, [](uint64_t a, uint64_t b) { return a == 0 || a > b ? b : a - 1; }},
      {"add.f32", 32, Float(0.5f), [](uint64_t a, uint64_t b) { return Float(AsFloat(a) + AsFloat(b)); }},
  };
  for (const AtomicCase& c : cases) {
    const bool number = c.op == "add.f32";
    const std::string value = number ? "cvt.rn.f32.u32 %f3, %r3;\nmov.b32 %r3, %f3;\n" : "";
    const std::string reg = c.bits == 64 ? "%rd" : "%r", type = Cat(".b", c.bits);
    for (const bool in_shared : {false, true}) {
      std::vector<uint64_t> words(256);
      words[0] = c.start;
      const std::string place = in_shared ? "[%r9]" : "[%rd0]", space = in_shared ? ".shared" : ".global";
      // The operand: the lane plus one.
      RunOn(
          Cat(kLane, "add.u32 %r3, %r1, 1;\n", value, "cvt.u64.u32 %rd3, %r3;\nmul.wide.u32 %rd1, %r1, 8;\n",
              "add.u64 %rd1, %rd0, %rd1;\nmov.u32 %r9, 1024;\nld.global", type, " ", reg, "4, [%rd0];\n",
              in_shared ? Cat("st.shared", type, " [%r9], ", reg, "4;\n") : std::string(), "atom", space, ".",
              c.op, " ", reg, "5, ", place, ", ", reg, "3;\nst.global", type, " [%rd1+1024], ", reg,
              "5;\nbar.sync 0;\n", "ld", space, type, " ", reg, "6, ", place, ";\nst.global", type,
              " [%rd0+8], ", reg, "6;\n"),
          &words, 64);
      // Replayed in the order that the old values tell: each is what the one before left.
      std::multimap<uint64_t, int> by_old;
      for (int l = 0; l < 32; ++l) by_old.emplace(words[128 + l], l);
      uint64_t now = c.start;
      for (int step = 0; step < 32;
           ++step) {  // lanes that saw the same: in the order of lanes, as the emulator's
        const auto next = by_old.find(now);
        ASSERT_NE(next, by_old.end()) << c.op << " in" << space << ": nobody saw " << now;
        const uint64_t operand = number ? Float(next->second + 1.0f) : next->second + 1u;
        by_old.erase(next);
        now = c.f(now, operand);
      }
      EXPECT_EQ(words[1], now) << c.op << " in" << space;
      // red: the same without old values.
      if (c.op.starts_with("exch")) continue;
      std::vector<uint64_t> reduced(256);
      reduced[0] = c.start;
      RunOn(Cat(kLane, "add.u32 %r3, %r1, 1;\n", value, "cvt.u64.u32 %rd3, %r3;\nred.global.", c.op,
                " [%rd0], ", reg, "3;\n"),
            &reduced);
      EXPECT_EQ(reduced[0], now) << "red of " << c.op;
    }
  }
}

TEST(Atomics, CompareAndSwap) {
  // A lock: each of eight warps adds its number to a plain word under it.
  std::vector<uint64_t> words(256);
  RunOn(Cat(kLane, "and.b32 %r4, %r1, 31;\nsetp.ne.u32 %p2, %r4, 0;\n@%p2 bra DONE;\nshr.u32 %r1, %r1, 5;\n",
            "TRY: atom.global.acquire.gpu.cas.b32 %r2, [%rd0], 0, 1;\nsetp.ne.u32 %p1, %r2, 0;\n@%p1 bra "
            "TRY;\n",
            "ld.global.u32 %r3, [%rd0+8];\nadd.u32 %r3, %r3, %r1;\nnanosleep.u32 20;\nst.global.u32 "
            "[%rd0+8], %r3;\n",
            "atom.global.release.gpu.exch.b32 %r2, [%rd0], 0;\nDONE:\n"),
        &words, 0, 256);
  EXPECT_EQ(words[0], 0u);
  EXPECT_EQ(words[1], 7u * 8 / 2);
  // 64 bits: one lane of all finds what it expects.
  words.assign(256, 0);
  words[0] = 0x100000000;
  RunOn(Cat(kLane, "cvt.u64.u32 %rd3, %r1;\nadd.u64 %rd3, %rd3, 1;\n",
            "atom.global.cas.b64 %rd4, [%rd0], 0x100000000, %rd3;\nmul.wide.u32 %rd1, %r1, 8;\n",
            "add.u64 %rd1, %rd0, %rd1;\nst.global.b64 [%rd1+1024], %rd4;\n"),
        &words);
  EXPECT_EQ(std::count(&words[128], &words[160], uint64_t{0x100000000}), 1);
  EXPECT_EQ(std::count(&words[128], &words[160], words[0]), 31);
}

TEST(Atomics, PairsAndVectors) {
  std::vector<uint64_t> words(256);
  // 1.0 and 0.5 as bf16, 2.0 and 0.25 as f16, added 32 times; four floats in one red.
  RunOn(
      "mov.u32 %r2, 0x3f003f80;\nred.global.add.noftz.bf16x2 [%rd0], %r2;\n"
      "mov.u32 %r3, 0x34004000;\natom.global.add.noftz.f16x2 %r4, [%rd0+8], %r3;\n"
      "mov.f32 %f1, 0f3F800000;\nmov.f32 %f2, 0f40000000;\nmov.f32 %f3, 0f40400000;\nmov.f32 %f4, "
      "0f40800000;\n"
      "red.global.add.v4.f32 [%rd0+16], {%f1, %f2, %f3, %f4};\n",
      &words);
  EXPECT_EQ(words[0], 0x4180'4200u);  // 16 and 32 as bf16
  EXPECT_EQ(words[1], 0x4800'5400u);  // 8 and 64 as f16
  EXPECT_EQ(words[2], Float(64) << 32 | Float(32));
  EXPECT_EQ(words[3], Float(128) << 32 | Float(96));
}

// Clocks go on, the timer is the host's; what speaks of the grid before and behind passes.
TEST(Control, ClocksAndDependentGrids) {
  std::vector<uint64_t> words(256);
  const auto now = [] {
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                     std::chrono::system_clock::now().time_since_epoch())
                                     .count());
  };
  const uint64_t before = now();
  RunOn(
      "griddepcontrol.wait;\nmov.u64 %rd1, %clock64;\nmov.u32 %r1, %clock;\nmov.u64 %rd2, %globaltimer;\n"
      "griddepcontrol.launch_dependents;\nnanosleep.u32 100;\nmov.u64 %rd3, %clock64;\nmov.u64 %rd4, "
      "%globaltimer;\n"
      "st.global.u64 [%rd0], %rd1;\nst.global.u64 [%rd0+8], %rd3;\nst.global.u64 [%rd0+16], %rd2;\n"
      "st.global.u64 [%rd0+24], %rd4;\n",
      &words);
  EXPECT_LT(words[0], words[1]);
  EXPECT_LE(words[2], words[3]);
  EXPECT_GE(words[2], before);
  EXPECT_LE(words[3], now());
}

}  // namespace
}  // namespace tessera::ptx
