// Runs the built `tessera` against a fake server, as a user or a script does.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/unit/client/fake_server.h"

namespace tessera {
namespace {

using testing::BadRequest;
using testing::FakeServer;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Refuse;

// A running `tessera`. Its standard error goes to a temporary file.
class Program {
 public:
  explicit Program(const std::vector<std::string>& words, const std::string& input = "") {
    error_path_ = ::testing::TempDir() + "/cli_error_" + std::to_string(getpid());
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(open(error_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
      unsetenv("TESSERA_ADDRESS");
      std::vector<char*> argv = {const_cast<char*>("tessera")};
      for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
      argv.push_back(nullptr);
      execv(TESSERA_BINARY_DIR "/tessera", argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    if (write(in[1], input.data(), input.size()) != static_cast<ssize_t>(input.size())) abort();
    close(in[1]);
    out_ = out[0];
  }
  ~Program() {
    if (out_ >= 0) close(out_);
  }

  // Reads until `text` has appeared.
  std::string ReadUntil(const std::string& text) {
    std::string read_text;
    char c;
    while (read_text.find(text) == std::string::npos && read(out_, &c, 1) == 1) read_text.push_back(c);
    return read_text;
  }
  void CloseOutput() {
    close(out_);
    out_ = -1;
  }
  void Signal(int signal) { kill(pid_, signal); }

  // The rest of the output, and the exit code.
  std::string Finish(int* exit_code) {
    std::string text;
    char buffer[4096];
    ssize_t count;
    while (out_ >= 0 && (count = read(out_, buffer, sizeof buffer)) > 0) text.append(buffer, count);
    int status = 0;
    waitpid(pid_, &status, 0);
    *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return text;
  }
  std::string Error() const {
    std::ifstream in(error_path_);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }

 private:
  pid_t pid_;
  int out_;
  std::string error_path_;
};

struct Result {
  std::string out, error;
  int code;
};

Result RunTessera(const std::vector<std::string>& words, const std::string& input = "") {
  Program program(words, input);
  Result result;
  result.out = program.Finish(&result.code);
  result.error = program.Error();
  return result;
}

Result RunWith(const FakeServer& server, std::vector<std::string> words, const std::string& input = "") {
  words.insert(words.begin() + 1, {"--address", server.address()});
  return RunTessera(words, input);
}

void WaitFor(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (!condition() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(condition());
}

TEST(Cli, GenerateSendsWhatTheOptionsSay) {
  FakeServer server;
  const Result result = RunWith(server, {"generate",
                                         "--max-tokens",
                                         "7",
                                         "--temperature",
                                         "0",
                                         "--top-p=0.5",
                                         "--top-k",
                                         "3",
                                         "--seed",
                                         "42",
                                         "--stop",
                                         "a",
                                         "--stop",
                                         "b",
                                         "--priority",
                                         "-2",
                                         "--request-id",
                                         "mine",
                                         "--timeout",
                                         "1.5s",
                                         "--n",
                                         "1",
                                         "Define:",
                                         "lantern"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(result.out, "word0 word1 word2 \n");
  EXPECT_EQ(result.error, "");
  const v1::GenerateRequest request = server.last_request();
  EXPECT_EQ(request.prompt().text(), "Define: lantern");
  EXPECT_EQ(request.stopping().max_tokens(), 7);
  EXPECT_TRUE(request.sampling().has_temperature()) << "0 is not the default";
  EXPECT_EQ(request.sampling().temperature(), 0);
  EXPECT_EQ(request.sampling().top_p(), 0.5f);
  EXPECT_EQ(request.sampling().top_k(), 3);
  EXPECT_EQ(request.sampling().seed(), 42);
  EXPECT_EQ(request.stopping().stop_strings_size(), 2);
  EXPECT_EQ(request.priority(), -2);
  EXPECT_EQ(request.request_id(), "mine");
  EXPECT_EQ(request.timeout().seconds(), 1);
  EXPECT_EQ(request.timeout().nanos(), 500000000);
}

TEST(Cli, UnsetOptionsStayUnset) {
  FakeServer server;
  RunWith(server, {"generate", "x"});
  const v1::GenerateRequest request = server.last_request();
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.stopping().has_max_tokens());
  EXPECT_FALSE(request.has_n());
  EXPECT_FALSE(request.has_timeout());
}

TEST(Cli, PromptsFromStandardInputAndChat) {
  FakeServer server;
  EXPECT_EQ(RunWith(server, {"generate"}, "from\na pipe\n").code, 0);
  EXPECT_EQ(server.last_request().prompt().text(), "from\na pipe");
  EXPECT_EQ(RunWith(server, {"generate", "-"}, "dash").code, 0);
  EXPECT_EQ(server.last_request().prompt().text(), "dash");
  EXPECT_EQ(RunWith(server, {"generate", "--system", "Be brief.", "Hello"}).code, 0);
  const v1::Chat chat = server.last_request().prompt().chat();
  ASSERT_EQ(chat.messages_size(), 2);
  EXPECT_EQ(chat.messages(0).role(), "system");
  EXPECT_EQ(chat.messages(1).content(), "Hello");
  EXPECT_EQ(RunWith(server, {"generate", "--ids", "1 2,3"}).code, 0);
  EXPECT_THAT(server.last_request().prompt().token_ids().ids(), ::testing::ElementsAre(1, 2, 3));

  const Result empty = RunWith(server, {"generate"}, "");
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.error, HasSubstr("the prompt is empty"));
  EXPECT_EQ(RunWith(server, {"generate", "bad \xff utf-8"}).code, 2);
}

TEST(Cli, JsonIsOneObjectAnEvent) {
  FakeServer server;
  const Result result = RunWith(server, {"generate", "--json", "x"});
  EXPECT_EQ(result.code, 0);
  const std::vector<std::string> lines = absl::StrSplit(result.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 5);
  EXPECT_EQ(nlohmann::json::parse(lines[0])["accepted"]["request_id"], "fake-1");
  EXPECT_EQ(nlohmann::json::parse(lines[1])["delta"]["text"], "word0 ");
  EXPECT_EQ(nlohmann::json::parse(lines[1])["delta"]["index"], 0);
  EXPECT_EQ(nlohmann::json::parse(lines[4])["finished"]["reason"], "FINISH_REASON_LENGTH");

  const Result once = RunWith(server, {"generate", "--json", "--once", "x"});
  EXPECT_EQ(nlohmann::json::parse(once.out)["outputs"][0]["text"], "whole");
  EXPECT_EQ(RunWith(server, {"generate", "--once", "x"}).out, "whole\n");
}

TEST(Cli, TextArrivesWhileTheStreamGoesOnAndInterruptEndsIt) {
  FakeServer server;
  server.Script({{.deltas = 2, .hang = true}});
  Program program({"generate", "--address", server.address(), "x"});
  EXPECT_EQ(program.ReadUntil("word1 "), "word0 word1 ");
  program.Signal(SIGINT);
  int code;
  EXPECT_EQ(program.Finish(&code), "\n");
  EXPECT_EQ(code, 130);
  EXPECT_THAT(program.Error(), HasSubstr("interrupted"));
  WaitFor([&] { return server.cancelled() == 1; });
}

TEST(Cli, AClosedPipeEndsTheCallQuietly) {
  FakeServer server;
  server.Script({{.deltas = 200000}});
  Program program({"generate", "--address", server.address(), "x"});
  program.ReadUntil("word0 ");
  program.CloseOutput();
  int code;
  program.Finish(&code);
  EXPECT_EQ(code, 141);
  EXPECT_EQ(program.Error(), "");
}

TEST(Cli, WrongUseIsExplained) {
  Result result = RunTessera({"generat", "x"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.error, HasSubstr("unknown command 'generat'; did you mean 'generate'?"));
  result = RunTessera({"generate", "--max-token", "5", "x"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.error, HasSubstr("did you mean '--max-tokens'?"));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(RunTessera({}).code, 2);
  EXPECT_EQ(RunTessera({"--version"}).out, "tessera " TESSERA_VERSION "\n");
  for (const char* command :
       {"generate", "embed", "tokenize", "detokenize", "info", "health", "abort", "quantize"}) {
    result = RunTessera({command, "--help"});
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, HasSubstr(std::string("Usage: tessera ") + command));
    EXPECT_THAT(result.out, Not(HasSubstr(" \n"))) << "no trailing spaces";
  }
}

TEST(Cli, NoServer) {
  std::string address;
  { address = FakeServer().address(); }
  for (const std::vector<std::string>& words : {std::vector<std::string>{"generate", "--retries", "0", "x"},
                                                {"info", "--retries", "1"},
                                                {"health"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--address", address});
    const Result result = RunTessera(all);
    EXPECT_EQ(result.code, 3) << words[0];
    EXPECT_THAT(result.error, HasSubstr("cannot reach a server at " + address)) << words[0];
  }
}

TEST(Cli, RefusedFieldsAreListed) {
  FakeServer server;
  server.Script({{.status = BadRequest({{"sampling.temperature", "got 3; expected 0 to 2"}}), .deltas = 0}});
  const Result result = RunWith(server, {"generate", "--temperature", "3", "x"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.error, HasSubstr("sampling.temperature: got 3; expected 0 to 2"));
  EXPECT_EQ(result.out, "");
}

TEST(Cli, RetriesAreToldWhenAskedFor) {
  FakeServer server;
  server.Script({Refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, "5")});
  const Result result = RunWith(server, {"generate", "--verbose", "x"});
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.error, HasSubstr("trying again in 5ms"));
  EXPECT_EQ(server.calls(), 2);
}

TEST(Cli, Embed) {
  FakeServer server;
  Result result = RunWith(server, {"embed", "--values", "A", "B"});
  EXPECT_EQ(result.out, "65 1\n66 1\n");
  result = RunWith(server, {"embed", "--values"}, "A\n\nC\n");
  EXPECT_EQ(result.out, "65 1\n67 1\n") << "a text a line, empty lines left out";
  result = RunWith(server, {"embed", "--similarity", "A", "A"});
  EXPECT_THAT(result.out, HasSubstr("1.000"));
  result = RunWith(server, {"embed", "--json", "A"});
  EXPECT_EQ(nlohmann::json::parse(result.out)["embeddings"][0]["values"][0], 65);
  EXPECT_EQ(RunWith(server, {"embed", "--pooling", "max", "A"}).code, 2);
  // More texts than one call takes.
  std::string lines;
  for (int i = 0; i < 600; ++i) lines += std::string(1, static_cast<char>('A' + i % 26)) + "\n";
  result = RunWith(server, {"embed", "--values"}, lines);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 600);
}

TEST(Cli, TokenizeAndDetokenize) {
  FakeServer server;
  EXPECT_EQ(RunWith(server, {"tokenize", "AB"}).out, "65 66\n");
  EXPECT_EQ(RunWith(server, {"tokenize", "--count", "ABC"}).out, "3\n");
  EXPECT_EQ(RunWith(server, {"detokenize", "72", "105"}).out, "Hi\n");
  EXPECT_EQ(RunWith(server, {"detokenize"}, "[72, 105]\n").out, "Hi\n");
  EXPECT_EQ(RunWith(server, {"detokenize", "x"}).code, 2);
}

TEST(Cli, InfoHealthAbort) {
  FakeServer server;
  EXPECT_THAT(RunWith(server, {"info"}).out, HasSubstr("fake-model"));
  const nlohmann::json info = nlohmann::json::parse(RunWith(server, {"info", "--json"}).out);
  EXPECT_EQ(info["server"]["version"], "9.9.9");
  EXPECT_EQ(info["load"]["running"], 2);
  EXPECT_EQ(RunWith(server, {"health"}).out, "SERVING\n");
  server.SetServing(false);
  EXPECT_EQ(RunWith(server, {"health"}).code, 3);
  EXPECT_EQ(RunWith(server, {"health", "--wait", "100ms"}).code, 3);
  EXPECT_EQ(RunWith(server, {"abort", "known"}).code, 0);
  EXPECT_EQ(RunWith(server, {"abort", "known", "other"}).code, 1);
  EXPECT_EQ(RunWith(server, {"abort"}).code, 2);
}

}  // namespace
}  // namespace tessera
