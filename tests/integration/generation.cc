#include "tests/integration/generation.h"

#include <ostream>

#include "gtest/gtest.h"

namespace tessera::testing {
namespace {

// About 200 tokens, so that it spans several blocks of the cache and several prefill chunks.
constexpr char kLongBeginning[] =
    "In the beginning God created the heaven and the earth. And the earth was without form, and void; and "
    "darkness was "
    "upon the face of the deep. And the Spirit of God moved upon the face of the waters. And God said, Let "
    "there be "
    "light: and there was light. And God saw the light, that it was good: and God divided the light from the "
    "darkness. "
    "And God called the light Day, and the darkness he called Night. And the evening and the morning were "
    "the first "
    "day. And God said, Let there be a firmament in the midst of the waters, and let it divide the waters "
    "from the "
    "waters. And God made the firmament, and divided the waters which were under the firmament from the "
    "waters which "
    "were above the firmament: and it was so. ";

}  // namespace

std::ostream& operator<<(std::ostream& os, const Generation::Output& output) {
  return os << v1::FinishReason_Name(output.reason) << " after " << output.token_ids.size() << " tokens: \""
            << output.text << "\"";
}

absl::StatusOr<Generation> Stream(Client& client, const v1::GenerateRequest& request) {
  Generation result;
  result.outputs.resize(std::max(request.n(), 1));
  int accepted = 0, finished = 0, tokens = 0;
  const absl::Status status = client.Generate(request, [&](const v1::GenerateResponse& event) {
    EXPECT_EQ(accepted, event.has_accepted() ? 0 : 1) << event.ShortDebugString();
    EXPECT_LT(finished, static_cast<int>(result.outputs.size()))
        << "after the last: " << event.ShortDebugString();
    if (event.has_accepted()) {
      ++accepted;
      return true;
    }
    const int index = event.has_delta() ? event.delta().index() : event.finished().index();
    if (index < 0 || index >= static_cast<int>(result.outputs.size())) {
      ADD_FAILURE() << event.ShortDebugString();
      return false;
    }
    Generation::Output& output = result.outputs[index];
    EXPECT_EQ(output.reason, v1::FINISH_REASON_UNSPECIFIED) << "after its end: " << event.ShortDebugString();
    if (event.has_delta()) {
      output.text += event.delta().text();
      output.token_ids.insert(output.token_ids.end(), event.delta().token_ids().begin(),
                              event.delta().token_ids().end());
      tokens += event.delta().num_tokens();
    } else {
      output.reason = event.finished().reason();
      ++finished;
      EXPECT_EQ(event.finished().has_usage(), finished == static_cast<int>(result.outputs.size()));
      if (event.finished().has_usage()) result.usage = event.finished().usage();
    }
    return true;
  });
  if (!status.ok()) return status;
  EXPECT_EQ(finished, static_cast<int>(result.outputs.size()));
  EXPECT_EQ(tokens, result.usage.completion_tokens());
  return result;
}

absl::StatusOr<Generation> Once(Client& client, const v1::GenerateRequest& request) {
  absl::StatusOr<v1::GenerateOnceResponse> response = client.GenerateOnce(request);
  if (!response.ok()) return response.status();
  Generation result;
  for (const v1::Output& output : response->outputs()) {
    result.outputs.push_back(
        {output.text(), {output.token_ids().begin(), output.token_ids().end()}, output.finished().reason()});
  }
  result.usage = response->usage();
  return result;
}

v1::GenerateRequest Greedy(const std::string& prompt, int max_tokens) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(prompt);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.set_return_token_ids(true);
  return request;
}

v1::GenerateRequest Sampled(const std::string& prompt, uint64_t seed, int max_tokens) {
  v1::GenerateRequest request = Greedy(prompt, max_tokens);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(seed);
  return request;
}

std::vector<v1::GenerateRequest> MixedRequests() {
  std::vector<v1::GenerateRequest> all = {
      Greedy("Define: lantern"),
      Greedy("Synonyms: car"),
      Greedy("Define: quickly"),
      Greedy("The function returns", 120),
      Greedy(std::string(kLongBeginning) + "And God called", 100),
      Greedy(std::string(kLongBeginning) + "And the evening", 100),
      Sampled("The Lord said", 1, 120),
      Sampled("Define: river", 2, 60),
      Sampled(kLongBeginning, 3, 100),
      Sampled("To create a table,", 4, 90),
  };
  for (size_t i = 3; i < all.size(); ++i) all[i].mutable_stopping()->set_ignore_eos(true);

  v1::GenerateRequest chat = Greedy("");
  v1::ChatMessage* message = chat.mutable_prompt()->mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("What is a volcano?");
  all.push_back(chat);

  v1::GenerateRequest ids = Greedy("", 50);
  for (int i = 0; i < 40; ++i) ids.mutable_prompt()->mutable_token_ids()->add_ids(300 + 37 * i);
  ids.mutable_stopping()->set_ignore_eos(true);
  all.push_back(ids);

  v1::GenerateRequest narrow = Sampled("A lantern is", 5, 80);
  narrow.mutable_sampling()->set_top_k(20);
  narrow.mutable_sampling()->set_top_p(0.9f);
  all.push_back(narrow);

  v1::GenerateRequest penalised = Greedy("and and and and", 80);
  penalised.mutable_sampling()->set_frequency_penalty(0.5f);
  penalised.mutable_sampling()->set_repetition_penalty(1.2f);
  penalised.mutable_stopping()->set_min_tokens(80);
  all.push_back(penalised);

  v1::GenerateRequest stopped = Greedy("Define: bridge");
  stopped.mutable_stopping()->add_stop_strings("s");
  stopped.mutable_stopping()->set_include_stop(true);
  all.push_back(stopped);

  v1::GenerateRequest several = Sampled("Define: stone", 6, 60);
  several.set_n(3);
  all.push_back(several);
  return all;
}

}  // namespace tessera::testing
