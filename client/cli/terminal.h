#ifndef TESSERA_CLIENT_CLI_TERMINAL_H_
#define TESSERA_CLIENT_CLI_TERMINAL_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/tessera_client.h"

namespace tessera::cli {

bool StdoutIsTerminal();
bool StderrIsTerminal();
bool StdinIsTerminal();

// Writes to standard output and flushes. False when the reader has gone or the disk is full; the first failure is
// remembered and reported by OutputExitCode.
bool Print(absl::string_view text);

// The same for text that a model made: on a terminal, control characters other than newline and tab are shown as
// U+FFFD, so that no output can drive the terminal.
bool PrintModelText(absl::string_view text);

// 0 if all output was written; 141, silently, if the reader closed the pipe (as SIGPIPE would end a program); else 1,
// with a message.
int OutputExitCode();

// Control characters, quotes and bytes that are no UTF-8 as \n, \", \xNN.
std::string Escaped(absl::string_view bytes);

// Where `text` stops being valid UTF-8, or npos.
size_t FirstInvalidUtf8(absl::string_view text);

// Aligns the cells of rows into columns, two spaces apart. Columns whose letter in `alignment` is 'r' are
// right-aligned.
std::string Table(const std::vector<std::vector<std::string>>& rows, absl::string_view alignment);

// All of standard input.
std::string ReadStdin();

// On the first SIGINT, SIGTERM or SIGHUP cancels the calls, on the second leaves at once with 128 + its number. Create
// before any other thread: it blocks the signals for the threads that follow. A signal that was ignored when the
// program started stays so.
class InterruptWatcher {
 public:
  explicit InterruptWatcher(Cancellation cancellation);

  // While set, the first signal leaves at once: nothing is under way that would have to end well.
  static void LeaveAtOnce(bool set);

  // While set, no signal leaves: they cancel, and the work under way ends soon by itself, tidily.
  static void NeverLeave(bool set);

  // The first signal that came, or 0.
  static int ReceivedSignal();
};

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_TERMINAL_H_
