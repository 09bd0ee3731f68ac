#include "client/cli/terminal.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <thread>

#include "absl/strings/str_cat.h"

namespace tessera::cli {
namespace {

int g_output_error = 0;  // errno of the first failed write; one thread prints
std::atomic<bool> g_leave_at_once{false};
std::atomic<bool> g_never_leave{false};
std::atomic<int> g_signal{0};  // the first one received

constexpr absl::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

// Length of the UTF-8 sequence at the start of `text` (Unicode 15, table 3-7), or 0 if it is none.
size_t Utf8Length(absl::string_view text) {
  const auto byte = [&](size_t i) -> int {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : -1;
  };
  const auto tail = [&](size_t i) { return byte(i) >= 0x80 && byte(i) <= 0xbf; };
  const int lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return tail(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    const bool second = tail(1) && (lead != 0xe0 || byte(1) >= 0xa0) && (lead != 0xed || byte(1) <= 0x9f);
    return second && tail(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    const bool second = tail(1) && (lead != 0xf0 || byte(1) >= 0x90) && (lead != 0xf4 || byte(1) <= 0x8f);
    return second && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

// Columns that `text` takes, counting a code point as one.
size_t DisplayWidth(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace

bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }
bool StderrIsTerminal() { return isatty(STDERR_FILENO) == 1; }
bool StdinIsTerminal() { return isatty(STDIN_FILENO) == 1; }

bool Print(absl::string_view text) {
  if (g_output_error != 0) return false;
  if (fwrite(text.data(), 1, text.size(), stdout) != text.size() || fflush(stdout) != 0) {
    g_output_error = errno == 0 ? EIO : errno;
    return false;
  }
  return true;
}

bool PrintModelText(absl::string_view text) {
  if (!StdoutIsTerminal()) return Print(text);
  std::string safe;
  for (size_t i = 0; i < text.size(); ++i) {
    const unsigned char c = text[i];
    // C1 controls are U+0080 to U+009F: C2 80 to C2 9F.
    const bool c1 = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f || c1) {
      absl::StrAppend(&safe, kReplacement);
      i += c1;
    } else {
      safe.push_back(static_cast<char>(c));
    }
  }
  return Print(safe);
}

int OutputExitCode() {
  if (g_output_error == 0) return 0;
  if (g_output_error == EPIPE) return 128 + SIGPIPE;
  std::cerr << "tessera: cannot write the output: " << strerror(g_output_error) << "\n";
  return 1;
}

std::string Escaped(absl::string_view bytes) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  while (!bytes.empty()) {
    const unsigned char c = bytes[0];
    const size_t length = Utf8Length(bytes);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (length == 0 || c < 0x20 || c == 0x7f ||
               (c == 0xc2 && static_cast<unsigned char>(bytes[1]) < 0xa0)) {
      absl::StrAppend(&out, "\\x", std::string(1, kHex[c >> 4]), std::string(1, kHex[c & 15]));
      bytes.remove_prefix(1);
      continue;
    } else {
      absl::StrAppend(&out, bytes.substr(0, length));
    }
    bytes.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

size_t FirstInvalidUtf8(absl::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = Utf8Length(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return absl::string_view::npos;
}

std::string Table(const std::vector<std::vector<std::string>>& rows, absl::string_view alignment) {
  std::vector<size_t> widths(alignment.size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - DisplayWidth(row[i]), ' ');
      if (alignment[i] == 'r') {
        absl::StrAppend(&line, padding, row[i]);
      } else {
        absl::StrAppend(&line, row[i], padding);
      }
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  }
  return out;
}

std::string ReadStdin() { return std::string(std::istreambuf_iterator<char>(std::cin), {}); }

InterruptWatcher::InterruptWatcher(Cancellation cancellation) {
  signal(SIGPIPE, SIG_IGN);  // writes report EPIPE, and calls end before the program does
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    // What the caller has ignored (nohup, a shell's background job) stays ignored: blocked, it would be kept for
    // sigwait all the same.
    struct sigaction action;
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&signals, signal);
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([signals, cancellation]() mutable {
    for (int count = 1;; ++count) {
      int received = SIGINT;
      sigwait(&signals, &received);
      int none = 0;
      g_signal.compare_exchange_strong(none, received);
      if (!g_never_leave.load() && (g_leave_at_once.load() || count > 1)) _exit(128 + received);
      cancellation.Cancel();
    }
  }).detach();
}

void InterruptWatcher::LeaveAtOnce(bool set) { g_leave_at_once.store(set); }
void InterruptWatcher::NeverLeave(bool set) { g_never_leave.store(set); }
int InterruptWatcher::ReceivedSignal() { return g_signal.load(); }

}  // namespace tessera::cli
