#include "client/cli/checkpoint_info.h"

#include <iostream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/capacity.h"
#include "client/cli/command.h"
#include "client/cli/describe_layers.h"
#include "client/cli/terminal.h"
#include "nlohmann/json.hpp"
#include "server/model/checkpoint.h"

namespace tessera::cli {
namespace {

std::string Scaled(double value, double base, const std::vector<const char*>& units) {
  size_t unit = 0;
  while (value >= base && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  std::string number = unit == 0 ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.1f", value);
  return *units[unit] == '\0' ? number : absl::StrCat(number, " ", units[unit]);
}

}  // namespace

std::string HumanBytes(int64_t bytes) { return Scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"}); }
std::string HumanCount(int64_t count) { return Scaled(count, 1000, {"", "k", "M", "B", "T"}); }

int ExplainCheckpoint(const std::string& dir, bool json) {
  absl::StatusOr<std::unique_ptr<Checkpoint>> opened = Checkpoint::Open(dir);
  // A configuration without weights still tells what they would be.
  const bool weightless = absl::IsNotFound(opened.status());
  if (weightless) {
    absl::StatusOr<std::unique_ptr<Checkpoint>> shapes = Checkpoint::Open(dir, LoadFormat::kDummy);
    if (shapes.ok()) opened = std::move(shapes);
  }
  if (!opened.ok()) {
    std::cerr << "tessera: " << opened.status().message() << "\n";
    return kFailed;
  }
  const Checkpoint& checkpoint = **opened;
  const ModelSpec& spec = checkpoint.spec();
  CheckpointFacts facts = checkpoint.facts();
  if (weightless) facts.warnings.push_back("no weights in this directory: sizes are those of NVFP4");
  const QuantizationHint& label = checkpoint.config().quantization;
  const int64_t token_bytes = KvBytesPerToken(spec);
  const std::vector<std::string> capacity = DescribeCapacity(spec, facts.weight_bytes);
  if (json) {
    nlohmann::ordered_json out = {{"architecture", spec.architecture},
                                  {"vocab_size", spec.vocab_size},
                                  {"hidden_size", spec.hidden_size},
                                  {"max_context", spec.max_context},
                                  {"tied_embeddings", spec.tied_embeddings},
                                  {"eos_token_ids", spec.eos_token_ids},
                                  {"layers", DescribeLayers(spec)},
                                  {"num_parameters", facts.num_parameters},
                                  {"num_active_parameters", facts.num_active_parameters},
                                  {"weight_bytes", facts.weight_bytes},
                                  {"label", absl::StrCat(label.method, " ", label.algorithm)},
                                  {"kv_cache_label", label.kv_cache},
                                  {"kv_bytes_per_token", token_bytes},
                                  {"fits", capacity},
                                  {"warnings", facts.warnings}};
    for (const FormatUse& use : facts.formats) {
      out["formats"].push_back({{"format", std::string(WeightFormatName(use.format))},
                                {"parameters", use.parameters},
                                {"bytes", use.bytes}});
    }
    if (checkpoint.reader() != nullptr) out["files"] = checkpoint.reader()->files();
    Print(out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    return OutputExitCode();
  }
  std::vector<std::vector<std::string>> rows = {
      {"architecture", spec.architecture},
      {"parameters", absl::StrCat(HumanCount(facts.num_parameters), ", ",
                                  HumanCount(facts.num_active_parameters), " active a token")},
      {"hidden size", absl::StrCat(spec.hidden_size)},
      {"vocabulary", absl::StrCat(spec.vocab_size, spec.tied_embeddings ? ", output matrix tied to it" : "")},
      {"context", absl::StrCat(spec.max_context, " tokens")},
      {"end tokens", absl::StrJoin(spec.eos_token_ids, " ")},
  };
  for (const std::string& line : DescribeLayers(spec)) rows.push_back({"", line});
  rows[rows.size() - DescribeLayers(spec).size()][0] = "layers";
  for (size_t i = 0; i < facts.formats.size(); ++i) {
    const FormatUse& use = facts.formats[i];
    rows.push_back({i == 0 ? "weights" : "",
                    absl::StrFormat("%s: %s parameters in %s (%.2f bits each)", WeightFormatName(use.format),
                                    HumanCount(use.parameters), HumanBytes(use.bytes),
                                    use.parameters > 0 ? 8.0 * use.bytes / use.parameters : 0.0)});
  }
  if (checkpoint.reader() != nullptr) {
    rows.push_back({"files", absl::StrCat(checkpoint.reader()->files().size(), ", ",
                                          HumanBytes(checkpoint.reader()->total_file_bytes()))});
  }
  if (!label.method.empty() || !label.algorithm.empty()) {
    rows.push_back({"label", absl::StrCat(label.method, " ", label.algorithm)});
  }
  rows.push_back({"keys, values",
                  absl::StrCat(HumanBytes(token_bytes), " a token in BF16",
                               label.kv_cache.empty() ? "" : absl::StrCat("; made for ", label.kv_cache))});
  for (size_t i = 0; i < capacity.size(); ++i) rows.push_back({i == 0 ? "fits" : "", capacity[i]});
  for (const std::string& warning : facts.warnings) rows.push_back({"warning", warning});
  Print(Table(rows, "ll"));
  return OutputExitCode();
}

}  // namespace tessera::cli
