#ifndef TESSERA_CLIENT_CLI_PROGRESS_BAR_H_
#define TESSERA_CLIENT_CLI_PROGRESS_BAR_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tessera::cli {

// How far some work is, on standard error: a bar that moves on a terminal; elsewhere a line every tenth. One thread at
// a time.
class ProgressBar {
 public:
  // `done` of `total`; `rate` is what is done a second ("12 MiB/s"), `what` the thing at work.
  void Show(int64_t done, int64_t total, absl::string_view rate, absl::string_view what);
  // Takes the bar off the terminal.
  void Clear();

  absl::Duration elapsed() const { return absl::Now() - start_; }
  // `done` a second since the bar was made.
  double PerSecond(int64_t done) const;

 private:
  const absl::Time start_ = absl::Now();
  absl::Time last_ = absl::InfinitePast();
  int tenth_ = -1;
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_PROGRESS_BAR_H_
