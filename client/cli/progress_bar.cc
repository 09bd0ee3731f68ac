#include "client/cli/progress_bar.h"

#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/terminal.h"

namespace tessera::cli {

void ProgressBar::Show(int64_t done, int64_t total, absl::string_view rate, absl::string_view what) {
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1.0;
  if (!StderrIsTerminal()) {
    const int tenth = static_cast<int>(share * 10);
    if (tenth > tenth_) {
      tenth_ = tenth;
      std::cerr << absl::StrFormat("%3d %%  %s  %s\n", tenth * 10, rate, what);
    }
    return;
  }
  constexpr int kWidth = 30;
  constexpr size_t kWhatWidth = 40;
  if (absl::Now() - last_ < absl::Milliseconds(50) && done < total) return;
  last_ = absl::Now();
  const int filled = std::clamp(static_cast<int>(share * kWidth), 0, kWidth);
  std::string text(what);
  if (text.size() > kWhatWidth) text = "..." + text.substr(text.size() - kWhatWidth + 3);
  std::cerr << absl::StrFormat("\r\033[K[%s%s] %3.0f %%  %s  %s", std::string(filled, '#'),
                               std::string(kWidth - filled, '-'), share * 100, rate, text)
            << std::flush;
}

void ProgressBar::Clear() {
  if (StderrIsTerminal()) std::cerr << "\r\033[K" << std::flush;
}

double ProgressBar::PerSecond(int64_t done) const {
  return static_cast<double>(done) / std::max(absl::ToDoubleSeconds(elapsed()), 1e-3);
}

}  // namespace tessera::cli
