#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/checkpoint_info.h"
#include "client/cli/command.h"
#include "client/cli/progress_bar.h"
#include "client/cli/terminal.h"
#include "server/model/quantize.h"

namespace tessera::cli {
namespace {

void PrintReport(const QuantizeReport& report, size_t limit) {
  std::vector<TensorError> tensors = report.tensors;
  std::stable_sort(tensors.begin(), tensors.end(), [](const TensorError& a, const TensorError& b) {
    return a.relative_rms > b.relative_rms;
  });
  std::vector<std::vector<std::string>> rows = {{"tensor", "shape", "relative RMS", "SQNR dB", "largest"}};
  for (size_t i = 0; i < tensors.size() && i < limit; ++i) {
    const TensorError& tensor = tensors[i];
    rows.push_back({tensor.name, absl::StrCat(tensor.rows, " x ", tensor.cols),
                    absl::StrFormat("%.4f", tensor.relative_rms), absl::StrFormat("%.2f", tensor.sqnr_db),
                    absl::StrFormat("%.4g", tensor.max_abs)});
  }
  Print(Table(rows, "lrrrr"));
  if (tensors.size() > limit) {
    Print(absl::StrCat("... and ", tensors.size() - limit, " better ones (--report all shows them)\n"));
  }
  Print(absl::StrFormat("\n%d tensors to NVFP4, %d kept; relative RMS error of all %.4f; %s to %s\n",
                        tensors.size(), report.tensors_kept, report.relative_rms,
                        HumanBytes(report.input_bytes), HumanBytes(report.output_bytes)));
}

}  // namespace

int RunQuantize(Context& context, const std::vector<std::string>& words) {
  constexpr size_t kWorstShown = 12;
  QuantizeOptions options;
  bool keep_attention = false;
  std::optional<int64_t> threads;
  std::string report = "worst";
  std::string dialect = "modelopt";
  Arguments arguments("tessera quantize [OPTION...] IN OUT",
                      "Turns the checkpoint in IN (BF16, F16, F32, FP8 or MXFP4, of any family that the "
                      "server reads) into NVFP4 in "
                      "OUT, and shows how far each matrix is from the original. Router, norms, embeddings "
                      "and the output matrix stay "
                      "BF16. OUT appears whole or not at all.");
  arguments.Group("Options");
  arguments.AddFlag("four-over-six",
                    "Per block, also try the scale that maps its largest value to 4, and keep the better.",
                    &options.four_over_six);
  arguments.AddString("dialect", "NAME",
                      "How tensors are named: modelopt (default) or compressed-tensors. Both are served.",
                      &dialect);
  arguments.AddFlag("keep-attention", "Leave the attention's projections in BF16.", &keep_attention);
  arguments.AddFlag("force", "Replace OUT if it exists.", &options.overwrite);
  arguments.AddString("report", "WHICH", "Tensors in the table: worst (default), all or none.", &report);
  arguments.AddInt("threads", "N", "Default: one a core.", 1, 1024, &threads);
  arguments.Epilogue("Example:\n  tessera quantize --four-over-six models/qwen3-moe models/qwen3-moe-nvfp4");
  int exit_code;
  const auto rest = ParseOrExplain(arguments, words, &exit_code);
  if (!rest.has_value()) return exit_code;
  if (rest->size() != 2) return UsageError("quantize", "expected two directories, IN and OUT");
  if (report != "worst" && report != "all" && report != "none") {
    return UsageError("quantize", absl::StrCat("--report: got '", report, "'; expected worst, all or none"));
  }
  if (dialect != "modelopt" && dialect != "compressed-tensors") {
    return UsageError(
        "quantize", absl::StrCat("--dialect: got '", dialect, "'; expected modelopt or compressed-tensors"));
  }
  options.dialect = dialect == "modelopt" ? QuantizeDialect::kModelOpt : QuantizeDialect::kCompressedTensors;
  options.attention = !keep_attention;
  if (threads) options.num_threads = static_cast<int>(*threads);
  ProgressBar bar;
  options.progress = [&](const QuantizeProgress& progress) {
    bar.Show(progress.bytes_done, progress.bytes_total,
             absl::StrCat(HumanBytes(static_cast<int64_t>(bar.PerSecond(progress.bytes_done))), "/s"),
             progress.tensor);
  };
  options.cancelled = [&] { return context.cancellation.cancelled(); };
  InterruptWatcher::NeverLeave(true);  // or the hidden directory would stay
  const absl::StatusOr<QuantizeReport> result = Quantize((*rest)[0], (*rest)[1], options);
  InterruptWatcher::NeverLeave(false);
  bar.Clear();
  if (absl::IsCancelled(result.status()) && context.cancellation.cancelled())
    return 128 + InterruptWatcher::ReceivedSignal();
  if (!result.ok()) {
    std::cerr << "tessera: " << result.status().message() << "\n";
    if (absl::IsAlreadyExists(result.status())) std::cerr << "Use --force to replace it.\n";
    return kFailed;
  }
  for (const std::string& warning : result->warnings) std::cerr << "warning: " << warning << "\n";
  if (report != "none") PrintReport(*result, report == "all" ? result->tensors.size() : kWorstShown);
  return OutputExitCode();
}

}  // namespace tessera::cli
