#include "tests/simulation/workload.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace tessera::simulation {

Profile RandomProfile(Random& random) {
  Profile p;
  SchedulerConfig& s = p.scheduler;
  constexpr int32_t kBlockSizes[] = {1, 2, 3, 4, 8, 16};
  s.block_size = kBlockSizes[random.Uniform(0, 5)];
  p.max_sequence = random.Chance(0.5) ? random.Uniform(2, 40) : random.Uniform(40, 200);
  const int32_t needed = (p.max_sequence + s.block_size - 1) / s.block_size;
  switch (random.Uniform(0, 3)) {
    case 0:  // what one sequence needs and not a block more
      s.num_blocks = needed;
      break;
    case 1:
      s.num_blocks = needed + random.Uniform(1, needed + 2);
      break;
    case 2:
      s.num_blocks = needed * random.Uniform(2, 6);
      break;
    default:
      s.num_blocks = needed * random.Uniform(6, 20);
  }
  s.num_blocks = std::min(s.num_blocks, std::max(needed, 600));
  s.max_running = random.Chance(0.2) ? random.Uniform(1, 3) : random.Uniform(4, 32);
  s.max_batched_tokens = random.Chance(0.2) ? random.Uniform(1, 8) : random.Uniform(8, 256);
  s.max_prefill_chunk = random.Chance(0.3) ? random.Uniform(1, 8) : random.Uniform(8, 128);
  s.max_context = random.Chance(0.3) ? p.max_sequence : 0;
  s.prefix_cache = random.Chance(0.88);
  constexpr int32_t kHashBits[] = {64, 64, 5, 2, 0};
  s.prefix_hash_bits = kHashBits[random.Uniform(0, 4)];

  p.max_live = random.Uniform(1, 60);
  p.arrival_rate = random.Chance(0.6) ? 2.0 : 0.02 + random.Uniform(0, 50) / 100.0;
  p.vocabulary = random.Chance(0.3) ? random.Uniform(1, 3) : random.Uniform(4, 1000);
  p.stop_one_in = random.Chance(0.3) ? 1 << 30 : random.Uniform(4, 100);
  if (random.Chance(0.6)) p.cancel_rate = random.Uniform(1, 100) / 1000.0;
  if (random.Chance(0.5)) p.cancel_in_plan_rate = random.Uniform(1, 50) / 1000.0;
  if (random.Chance(0.7)) p.ahead_rate = random.Chance(0.6) ? 1.0 : random.Uniform(10, 95) / 100.0;
  if (random.Chance(0.3)) p.late_rate = random.Uniform(1, 100) / 1000.0;
  if (random.Chance(0.3)) p.behind_share = random.Uniform(1, 30) / 100.0;
  if (random.Chance(0.5)) p.deadline_share = random.Uniform(5, 80) / 100.0;
  if (random.Chance(0.4)) p.row_error_rate = random.Uniform(1, 20) / 1000.0;
  if (random.Chance(0.4)) p.device_fault_rate = random.Uniform(1, 20) / 1000.0;
  if (random.Chance(0.2)) p.clear_rate = random.Uniform(1, 30) / 1000.0;
  if (random.Chance(0.6)) p.group_share = random.Uniform(5, 60) / 100.0;
  if (random.Chance(0.5)) p.embedding_share = random.Uniform(5, 60) / 100.0;
  if (random.Chance(0.4)) p.bypass_share = random.Uniform(5, 60) / 100.0;
  if (random.Chance(0.6)) p.priority_share = random.Uniform(5, 80) / 100.0;
  p.num_salts = random.Skewed(1, 3);
  return p;
}

std::string Describe(const Profile& p) {
  const SchedulerConfig& s = p.scheduler;
  return absl::StrCat("blocks ", s.num_blocks, " of ", s.block_size, ", running ", s.max_running, ", batch ",
                      s.max_batched_tokens, ", chunk ", s.max_prefill_chunk, ", context ", s.max_context,
                      ", cache ", s.prefix_cache, ", hash bits ", s.prefix_hash_bits, ", longest ",
                      p.max_sequence, ", ahead ", p.ahead_rate, ", late ", p.late_rate, ", live ", p.max_live);
}

Workload::Workload(const Profile& profile, Random* random) : profile_(profile), random_(*random) {
  for (int i = 0; i < 8; ++i) documents_.push_back(RandomTokens(random_.Uniform(1, profile.max_sequence)));
}

std::vector<int32_t> Workload::RandomTokens(int32_t count) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = random_.Uniform(0, profile_.vocabulary - 1);
  return tokens;
}

std::vector<int32_t> Workload::Prompt() {
  const int32_t longest = std::max(profile_.max_sequence - 1, 1);
  std::vector<int32_t> prompt;
  if (!conversations_.empty() && random_.Chance(0.3)) {
    prompt = conversations_[random_.Uniform(0, static_cast<int32_t>(conversations_.size()) - 1)];
  } else if (random_.Chance(0.7)) {
    prompt = documents_[random_.Zipf(static_cast<int32_t>(documents_.size()))];
    if (random_.Chance(0.3)) prompt.resize(random_.Uniform(1, static_cast<int32_t>(prompt.size())));
  }
  if (prompt.empty() || random_.Chance(0.7)) {
    const int32_t more = random_.Chance(0.2) ? random_.Uniform(1, longest) : random_.Uniform(1, 12);
    const std::vector<int32_t> tail = RandomTokens(more);
    prompt.insert(prompt.end(), tail.begin(), tail.end());
  }
  if (static_cast<int32_t>(prompt.size()) > longest) prompt.resize(longest);
  return prompt;
}

std::vector<int32_t> Workload::TooLong() {
  const SchedulerConfig& s = profile_.scheduler;
  const int32_t fits =
      s.max_context > 0 ? std::min(s.max_context, s.num_blocks * s.block_size) : s.num_blocks * s.block_size;
  return RandomTokens(fits + random_.Uniform(1, 5));
}

void Workload::Remember(const std::vector<int32_t>& tokens) {
  if (conversations_.size() < 6) {
    conversations_.push_back(tokens);
  } else {
    conversations_[next_conversation_++ % conversations_.size()] = tokens;
  }
}

std::string Workload::SaltName(int32_t salt) { return salt == 0 ? "" : absl::StrCat("tenant-", salt); }

}  // namespace tessera::simulation
