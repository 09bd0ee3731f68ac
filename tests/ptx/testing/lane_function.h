// Evaluates one instruction as a function of up to four values, 32 lanes at a time.
#ifndef TESSERA_TESTS_PTX_TESTING_LANE_FUNCTION_H_
#define TESSERA_TESTS_PTX_TESTING_LANE_FUNCTION_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera::ptx {

using Inputs = std::array<uint64_t, 4>;  // a, b, c, e

// `code` computes %d from %a, %b, %c, %e, registers of so many bits (16, 32 or 64); %x is a scratch register of 32, %y of
// 64 bits, %p and %q are predicates. Gives %d of each input, zero-extended. Fails the test if the kernel does not run.
std::vector<uint64_t> Evaluate(std::string_view code, int source_bits, int result_bits,
                               const std::vector<Inputs>& inputs);

// Bit patterns that find mistakes: small, large, negative, powers of two around, random. Truncated to `bits`.
std::vector<uint64_t> InterestingIntegers(int bits, int random_count);
// As float (32) or double (64) bits: zeros, subnormals, powers, halves, infinities, NaN, random bits, random magnitudes.
std::vector<uint64_t> InterestingFloats(int bits, int random_count);
// `count` random choices of four.
std::vector<Inputs> Combine(const std::vector<uint64_t>& values, int count);

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_TESTING_LANE_FUNCTION_H_
