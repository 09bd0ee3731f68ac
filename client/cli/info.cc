#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/cli/checkpoint_info.h"
#include "client/cli/command.h"
#include "client/cli/terminal.h"

namespace tessera::cli {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(10);

using Rows = std::vector<std::vector<std::string>>;

std::string Sampling(const v1::SamplingParams& params) {
  std::vector<std::string> parts;
  if (params.has_temperature()) parts.push_back(absl::StrCat("temperature ", params.temperature()));
  if (params.has_top_k()) parts.push_back(absl::StrCat("top_k ", params.top_k()));
  if (params.has_top_p()) parts.push_back(absl::StrCat("top_p ", params.top_p()));
  if (params.min_p() != 0) parts.push_back(absl::StrCat("min_p ", params.min_p()));
  if (params.has_repetition_penalty()) {
    parts.push_back(absl::StrCat("repetition_penalty ", params.repetition_penalty()));
  }
  return absl::StrJoin(parts, ", ");
}

std::string ModelText(const v1::ModelInfo& model) {
  Rows rows = {
      {"  name", model.name()},
      {"  architecture", model.architecture()},
      {"  parameters", absl::StrCat(HumanCount(model.num_parameters()), ", ",
                                    HumanCount(model.num_active_parameters()), " active a token")},
      {"  layers", absl::StrCat(model.num_layers(), ", hidden size ", model.hidden_size())},
      {"  experts", absl::StrCat(model.num_experts(), ", ", model.num_experts_per_token(), " a token")},
      {"  vocabulary", absl::StrCat(model.vocab_size())},
      {"  context", absl::StrCat(model.max_context(), " tokens, ", HumanBytes(model.kv_bytes_per_token()),
                                 " of keys and values each")},
      {"  weights",
       absl::StrCat(HumanBytes(model.weight_bytes()), ", ", absl::StrJoin(model.weight_formats(), " + "))},
      {"  end tokens", absl::StrJoin(model.eos_token_ids(), " ")},
      {"  chat template", model.has_chat_template() ? "yes" : "no"},
      {"  sampling", Sampling(model.default_sampling())},
  };
  return absl::StrCat("model\n", Table(rows, "ll"));
}

std::string ServerText(const v1::ServerInfo& server, const std::string& address) {
  const absl::Duration uptime = absl::Seconds(server.uptime().seconds());
  Rows rows = {
      {"  address", address},
      {"  version", server.version()},
      {"  state", absl::StrCat(server.state(), ", up ", absl::FormatDuration(uptime))},
      {"  device", absl::StrCat(server.device(), " (", server.device_description(), ")")},
      {"  limits",
       absl::StrCat(server.max_running_sequences(), " sequences and ", server.max_batched_tokens(),
                    " tokens a step, ", server.max_queued_sequences(), " sequences waiting, ",
                    HumanBytes(server.max_request_bytes()), " a request")},
      {"  KV cache", absl::StrCat(server.kv_blocks_total(), " blocks of ", server.kv_block_size(),
                                  " tokens, prefix cache ", server.prefix_cache_enabled() ? "on" : "off")},
  };
  return absl::StrCat("server\n", Table(rows, "ll"));
}

std::string LoadText(const v1::Load& load) {
  Rows rows = {
      {"  sequences", absl::StrCat(load.running(), " running, ", load.waiting(), " waiting")},
      {"  KV cache", absl::StrFormat("%.1f %% used (%d blocks; %d more hold cached prefixes)",
                                     load.kv_usage() * 100, load.kv_blocks_used(), load.kv_blocks_cached())},
      {"  tokens a second",
       absl::StrFormat("%.1f generated, %.1f of prompts", load.generation_tokens_per_second(),
                       load.prompt_tokens_per_second())},
      {"  prefix hits", absl::StrFormat("%.1f %%", load.prefix_cache_hit_rate() * 100)},
  };
  return absl::StrCat("load\n", Table(rows, "ll"));
}

}  // namespace

int RunInfo(Context& context, const std::vector<std::string>& words) {
  bool json = false;
  Arguments arguments(
      "tessera info [OPTION...] [DIR]",
      "Shows the server, its model and its load. With a directory: explains the checkpoint in it, without "
      "a server.");
  arguments.Group("Options");
  arguments.AddFlag("json", "Print JSON.", &json);
  context.connection.AddTo(arguments);
  int exit_code;
  const auto rest = ParseOrExplain(arguments, words, &exit_code);
  if (!rest.has_value()) return exit_code;
  if (rest->size() > 1) return UsageError("info", "expected at most one directory");
  if (rest->size() == 1) return ExplainCheckpoint(rest->front(), json);
  std::unique_ptr<Client> client = Connect(context, &exit_code);
  if (client == nullptr) return exit_code;

  const CallOptions call{.timeout = kTimeout, .cancellation = context.cancellation};
  const auto server = client->GetServerInfo(call);
  if (!server.ok()) return Explain(context, server.status());
  const auto model = client->GetModelInfo(call);
  if (!model.ok()) return Explain(context, model.status());
  const auto load = client->GetLoad(call);
  if (!load.ok()) return Explain(context, load.status());
  if (json) {
    Print(absl::StrCat("{\"server\":", Json(*server, false), ",\"model\":", Json(*model, false),
                       ",\"load\":", Json(*load, false), "}\n"));
  } else {
    Print(absl::StrCat(ServerText(*server, context.connection.options.address), "\n", ModelText(*model), "\n",
                       LoadText(*load)));
  }
  return OutputExitCode();
}

}  // namespace tessera::cli
