#ifndef TESSERA_TESTS_SIMULATION_WORKLOAD_H_
#define TESSERA_TESTS_SIMULATION_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/scheduler/scheduler.h"
#include "tests/simulation/random.h"

namespace tessera::simulation {

// What one seed simulates.
struct Profile {
  SchedulerConfig scheduler;
  int32_t max_sequence = 0;  // tokens, prompt and output, of the longest sequence that is accepted
  int32_t max_live = 0;      // arrivals pause above this
  double arrival_rate = 0;   // requests a step
  int32_t vocabulary = 0;
  int32_t stop_one_in = 0;  // tokens
  double cancel_rate = 0;   // of some sequence, a step
  double cancel_in_plan_rate = 0;
  double ahead_rate = 0;         // of plans made while a step is at work, a step
  double late_rate = 0;          // of tokens that come too late for the row planned ahead, a row
  double behind_share = 0;       // of requests that do not run ahead
  double deadline_share = 0;     // of requests
  double row_error_rate = 0;     // a row
  double device_fault_rate = 0;  // a step
  double clear_rate = 0;         // of the prefix cache, a step
  double group_share = 0;        // of requests: several outputs
  double embedding_share = 0;
  double bypass_share = 0;
  double priority_share = 0;  // requests with a priority other than 0
  int32_t num_salts = 1;
};
Profile RandomProfile(Random& random);

std::string Describe(const Profile& profile);

// Makes prompts that share prefixes: system prompts by Zipf's law, and earlier conversations continued.
class Workload {
 public:
  Workload(const Profile& profile, Random* random);

  // A prompt of at least one token that leaves room for one output token within the longest sequence.
  std::vector<int32_t> Prompt();
  // One that is too long for the cache or the context.
  std::vector<int32_t> TooLong();
  // A sequence ended: its tokens may come back as the start of a prompt.
  void Remember(const std::vector<int32_t>& tokens);

  static std::string SaltName(int32_t salt);

 private:
  std::vector<int32_t> RandomTokens(int32_t count);

  const Profile profile_;
  Random& random_;
  std::vector<std::vector<int32_t>> documents_;      // shared beginnings
  std::vector<std::vector<int32_t>> conversations_;  // the last few that ended
  size_t next_conversation_ = 0;
};

}  // namespace tessera::simulation

#endif  // TESSERA_TESTS_SIMULATION_WORKLOAD_H_
