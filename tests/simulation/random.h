#ifndef TESSERA_TESTS_SIMULATION_RANDOM_H_
#define TESSERA_TESTS_SIMULATION_RANDOM_H_

#include <cstdint>

namespace tessera::simulation {

// SplitMix64's finaliser (Steele, Lea, Flood 2014).
inline uint64_t Scramble(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Random numbers that are the same with every compiler and library, so that a seed replays anywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(Scramble(seed)) {}

  uint64_t Next() { return Scramble(state_++); }
  // From lo to hi, both included.
  int32_t Uniform(int32_t lo, int32_t hi) {
    return lo + static_cast<int32_t>(Next() % static_cast<uint64_t>(static_cast<int64_t>(hi) - lo + 1));
  }
  bool Chance(double probability) { return static_cast<double>(Next() >> 11) * 0x1p-53 < probability; }
  // Small numbers often, large ones rarely: half of what is left goes to each further one.
  int32_t Skewed(int32_t lo, int32_t hi) {
    int32_t value = lo;
    while (value < hi && Chance(0.5)) ++value;
    return value;
  }
  // An index below n with probability proportional to 1 / (index + 1), roughly: Zipf's law by rejection.
  int32_t Zipf(int32_t n) {
    for (;;) {
      const int32_t i = Uniform(0, n - 1);
      if (Chance(1.0 / (i + 1))) return i;
    }
  }

 private:
  uint64_t state_;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_RANDOM_H_
