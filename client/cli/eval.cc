#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/checkpoint_info.h"
#include "client/cli/command.h"
#include "client/cli/perplexity.h"
#include "client/cli/progress_bar.h"
#include "client/cli/terminal.h"
#include "nlohmann/json.hpp"
#include "server/model/file_io.h"

namespace tessera::cli {
namespace {

constexpr int64_t kMaxTextBytes = int64_t{1} << 30;

struct Measured {
  std::string directory;
  Perplexity perplexity;
};

nlohmann::ordered_json AsJson(const std::vector<Measured>& all) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Measured& one : all) {
    const Perplexity& perplexity = one.perplexity;
    nlohmann::ordered_json entry = {{"checkpoint", one.directory},
                                    {"formats", perplexity.formats},
                                    {"weight_bytes", perplexity.weight_bytes},
                                    {"tokens", perplexity.tokens.size()},
                                    {"perplexity", perplexity.Value()},
                                    {"nll", perplexity.MeanNll()},
                                    {"nll_error", NllError(perplexity)},
                                    {"bits_per_byte", perplexity.BitsPerByte()},
                                    {"first_choice", perplexity.FirstChoiceShare()},
                                    {"seconds", perplexity.seconds}};
    if (&one != &all.front() && perplexity.tokens == all.front().perplexity.tokens) {
      const PerplexityDifference difference = Compare(all.front().perplexity, perplexity);
      entry["against_first"] = {{"nll", difference.nll},
                                {"nll_error", difference.nll_error},
                                {"same_choice", difference.same_choice}};
    }
    out.push_back(std::move(entry));
  }
  return out;
}

void PrintTable(const std::vector<Measured>& all) {
  std::vector<std::vector<std::string>> rows = {{"checkpoint", "weights", "in memory", "tokens", "perplexity",
                                                 "+-", "bits a byte", "first choice", "tokens/s"}};
  for (const Measured& one : all) {
    const Perplexity& p = one.perplexity;
    rows.push_back(
        {one.directory, p.formats, HumanBytes(p.weight_bytes), absl::StrCat(p.tokens.size()),
         absl::StrFormat("%.4f", p.Value()), absl::StrFormat("%.4f", p.Value() * NllError(p)),
         absl::StrFormat("%.4f", p.BitsPerByte()), absl::StrFormat("%.2f %%", 100 * p.FirstChoiceShare()),
         absl::StrFormat("%.0f", static_cast<double>(p.tokens.size()) / std::max(p.seconds, 1e-9))});
  }
  Print(Table(rows, "llrrrrrrr"));
  for (size_t i = 1; i < all.size(); ++i) {
    if (all[i].perplexity.tokens != all[0].perplexity.tokens) {
      Print(absl::StrCat("\n", all[i].directory, ": tokenises otherwise than ", all[0].directory,
                         "; bits a byte compare, perplexities do not\n"));
      continue;
    }
    const PerplexityDifference d = Compare(all[0].perplexity, all[i].perplexity);
    Print(absl::StrFormat(
        "\n%s against %s: perplexity x %.5f, loss %+.5f +- %.5f a token; same first choice %.2f "
        "%%\n",
        all[i].directory, all[0].directory, std::exp(d.nll), d.nll, d.nll_error, 100 * d.same_choice));
  }
}

}  // namespace

int RunEval(Context& context, const std::vector<std::string>& words) {
  std::string file;
  bool json = false;
  std::optional<int64_t> window, max_tokens, threads;
  Arguments arguments("tessera eval --perplexity FILE [OPTION...] DIR...",
                      "Measures how well checkpoints predict a text, on this machine's CPU and with the "
                      "server's own kernels, and "
                      "compares the others with the first: what quantising cost, for example.");
  arguments.Group("Options");
  arguments.AddString("perplexity", "FILE", "The text, in UTF-8; - for standard input.", &file);
  arguments.AddInt("context", "N", "Tokens of a window. Windows do not overlap. Default 512.", 2, 1 << 20,
                   &window);
  arguments.AddInt("max-tokens", "N", "Score no more than the text's first N tokens.", 2, int64_t{1} << 40,
                   &max_tokens);
  arguments.AddInt("threads", "N", "Default: one a core.", 1, 1024, &threads);
  arguments.AddFlag("json", "Print JSON.", &json);
  arguments.Epilogue(
      "Example:\n  tessera eval --perplexity wiki.txt models/qwen3-moe models/qwen3-moe-nvfp4");
  int exit_code;
  const auto rest = ParseOrExplain(arguments, words, &exit_code);
  if (!rest.has_value()) return exit_code;
  if (file.empty()) return UsageError("eval", "expected --perplexity FILE");
  if (rest->empty()) return UsageError("eval", "expected one directory or more");

  absl::StatusOr<std::string> text = file == "-" ? ReadStdin() : ReadTextFile(file, kMaxTextBytes);
  if (!text.ok()) {
    std::cerr << "tessera: " << text.status().message() << "\n";
    return kFailed;
  }
  std::vector<Measured> all;
  for (const std::string& directory : *rest) {
    PerplexityOptions options;
    if (window) options.context = static_cast<int32_t>(*window);
    if (max_tokens) options.max_tokens = *max_tokens;
    if (threads) options.num_threads = static_cast<int>(*threads);
    options.cancelled = [&] { return context.cancellation.cancelled(); };
    ProgressBar loading;
    options.loading = [&](int64_t done, int64_t total) {
      loading.Show(done, total, absl::StrCat(HumanBytes(static_cast<int64_t>(loading.PerSecond(done))), "/s"),
                   absl::StrCat("loading ", directory));
    };
    std::optional<ProgressBar> bar;
    options.scoring = [&](int64_t done, int64_t total) {
      if (!bar) bar.emplace();
      bar->Show(done, total, absl::StrFormat("%.0f tokens/s", bar->PerSecond(done)), directory);
    };
    absl::StatusOr<Perplexity> result = MeasurePerplexity(directory, *text, options);
    loading.Clear();
    if (absl::IsCancelled(result.status()) && context.cancellation.cancelled())
      return 128 + InterruptWatcher::ReceivedSignal();
    if (!result.ok()) {
      std::cerr << "tessera: " << result.status().message() << "\n";
      return kFailed;
    }
    all.push_back({directory, *std::move(result)});
  }
  if (json) {
    Print(AsJson(all).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    PrintTable(all);
  }
  return OutputExitCode();
}

}  // namespace tessera::cli
