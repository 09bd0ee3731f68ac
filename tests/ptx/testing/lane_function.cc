#include "tests/ptx/testing/lane_function.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "tests/ptx/testing/mini_kernel.h"
#include "tests/ptx/text.h"

namespace tessera::ptx {

std::vector<uint64_t> Evaluate(std::string_view code, int source_bits, int result_bits,
                               const std::vector<Inputs>& inputs) {
  // One CTA of 32 threads for each 32 inputs: 5 words a thread.
  const size_t count = (inputs.size() + 31) / 32 * 32;
  MiniRunner runner;
  runner.words.assign(count * 5, 0);
  for (size_t k = 0; k < inputs.size(); ++k)
    std::copy(inputs[k].begin(), inputs[k].end(), &runner.words[k * 5]);
  runner.config.grid.x = static_cast<uint32_t>(count / 32);
  const absl::Status status = runner.Run(MiniKernel(
      Cat(".reg .b", source_bits, " %a, %b, %c, %e;\n.reg .b", result_bits,
          " %d;\n.reg .b32 %x;\n.reg .b64 %y;\n.reg .pred %p, %q;\n",
          "mov.u32 %r1, %tid.x;\nmov.u32 %r2, %ctaid.x;\nmad.lo.u32 %r1, %r2, 32, %r1;\nmul.wide.u32 %rd1, "
          "%r1, 40;\n",
          "add.u64 %rd1, %rd0, %rd1;\n", "ld.global.b", source_bits, " %a, [%rd1];\nld.global.b", source_bits,
          " %b, [%rd1+8];\n", "ld.global.b", source_bits, " %c, [%rd1+16];\nld.global.b", source_bits,
          " %e, [%rd1+24];\n", code, "\nst.global.b", result_bits, " [%rd1+32], %d;\n")));
  EXPECT_TRUE(status.ok()) << code << "\n" << status;
  std::vector<uint64_t> results;
  for (size_t k = 0; k < inputs.size(); ++k) results.push_back(runner.words[k * 5 + 4]);
  return results;
}

std::vector<uint64_t> InterestingIntegers(int bits, int random_count) {
  const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  std::vector<uint64_t> values;
  for (uint64_t v : {0, 1, 2, 3, 7, 8, 31, 32, 33, 63, 64, 100, 255}) {
    values.push_back(v & mask);
    values.push_back(-v & mask);
  }
  for (int k = 1; k < bits; k += 5) {
    values.push_back((uint64_t{1} << k) & mask);
    values.push_back(((uint64_t{1} << k) - 1) & mask);
  }
  for (const uint64_t v : {mask >> 1, (mask >> 1) + 1, mask, mask - 1}) values.push_back(v);
  std::mt19937_64 random(bits);
  for (int k = 0; k < random_count; ++k) values.push_back(random() & mask);
  return values;
}

std::vector<uint64_t> InterestingFloats(int bits, int random_count) {
  std::mt19937_64 random(bits);
  std::vector<double> values{0,
                             1,
                             2,
                             3,
                             0.5,
                             1.5,
                             2.5,
                             1e-3,
                             1e10,
                             65504,
                             65520,
                             448,
                             57344,
                             1 + 0x1p-24,
                             1 + 0x1p-23,
                             0x1p-24,
                             0x1p-126,
                             0x1p-127,
                             0x1p-149,
                             3 * 0x1p-149,
                             0x1.fffffep127,
                             std::numeric_limits<double>::infinity()};
  for (int k = 0; k < random_count; ++k) {
    values.push_back(std::ldexp(std::uniform_real_distribution<double>(1, 2)(random),
                                static_cast<int>(random() % 40) - 20));
  }
  std::vector<uint64_t> out;
  for (const double v : values) {
    for (const double s : {v, -v}) {
      out.push_back(bits == 32 ? std::bit_cast<uint32_t>(static_cast<float>(s)) : std::bit_cast<uint64_t>(s));
    }
  }
  for (int k = 0; k < random_count; ++k) out.push_back(bits == 32 ? random() >> 32 : random());
  out.push_back(bits == 32 ? 0x7FC00001 : 0x7FF8000000000001);
  return out;
}

std::vector<Inputs> Combine(const std::vector<uint64_t>& values, int count) {
  std::mt19937_64 random(count);
  std::vector<Inputs> inputs;
  for (int k = 0; k < count; ++k) {
    Inputs input;
    for (uint64_t& v : input) v = values[random() % values.size()];
    inputs.push_back(input);
  }
  return inputs;
}

}  // namespace tessera::ptx
