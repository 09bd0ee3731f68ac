#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cli/command.h"
#include "client/cli/terminal.h"

namespace tessera::cli {
namespace {

constexpr int kInputsPerCall = 256;  // EmbedRequest.inputs
constexpr int kShownValues = 6;
constexpr size_t kShownText = 32;

std::vector<std::string> ReadLines() {
  std::vector<std::string> lines;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

double CosineSimilarity(const v1::Embedding& a, const v1::Embedding& b) {
  double dot = 0, aa = 0, bb = 0;
  for (int i = 0; i < a.values_size() && i < b.values_size(); ++i) {
    dot += static_cast<double>(a.values(i)) * b.values(i);
    aa += static_cast<double>(a.values(i)) * a.values(i);
    bb += static_cast<double>(b.values(i)) * b.values(i);
  }
  return aa > 0 && bb > 0 ? dot / std::sqrt(aa * bb) : 0;
}

// The text's beginning, in at most kShownText code points.
std::string Shortened(const std::string& text) {
  const std::string escaped = Escaped(text);
  size_t points = 0;
  for (size_t i = 0; i < escaped.size(); ++i) {
    if ((escaped[i] & 0xc0) == 0x80) continue;
    if (++points > kShownText) return escaped.substr(0, i) + "...";
  }
  return escaped;
}

bool PrintValues(const v1::EmbedResponse& response) {
  for (const v1::Embedding& embedding : response.embeddings()) {
    std::string line;
    for (const float value : embedding.values()) absl::StrAppend(&line, line.empty() ? "" : " ", value);
    if (!Print(line + "\n")) return false;
  }
  return true;
}

void PrintShort(const v1::EmbedResponse& response, const std::vector<std::string>& texts) {
  std::vector<std::vector<std::string>> rows;
  for (int i = 0; i < response.embeddings_size(); ++i) {
    const v1::Embedding& embedding = response.embeddings(i);
    std::string values;
    for (int j = 0; j < embedding.values_size() && j < kShownValues; ++j) {
      absl::StrAppend(&values, j > 0 ? " " : "", absl::StrFormat("%8.5f", embedding.values(j)));
    }
    if (embedding.values_size() > kShownValues) {
      absl::StrAppend(&values, " ... (", embedding.values_size(), " values)");
    }
    rows.push_back({Shortened(texts[i]),
                    absl::StrCat(embedding.num_tokens(), embedding.truncated() ? " tokens, cut" : " tokens"),
                    values});
  }
  Print(Table(rows, "lrl"));
}

void PrintSimilarity(const v1::EmbedResponse& response, const std::vector<std::string>& texts) {
  std::vector<std::vector<std::string>> rows(1, {""});
  for (int j = 0; j < response.embeddings_size(); ++j) rows[0].push_back(absl::StrCat("[", j, "]"));
  for (int i = 0; i < response.embeddings_size(); ++i) {
    rows.push_back({absl::StrCat("[", i, "] ", Shortened(texts[i]))});
    for (int j = 0; j < response.embeddings_size(); ++j) {
      rows.back().push_back(
          absl::StrFormat("%.3f", CosineSimilarity(response.embeddings(i), response.embeddings(j))));
    }
  }
  Print(Table(rows, "l" + std::string(texts.size(), 'r')));
}

}  // namespace

int RunEmbed(Context& context, const std::vector<std::string>& words) {
  bool json = false, values = false, similarity = false, raw = false, truncate = false;
  std::string pooling, model, request_id;
  std::optional<int64_t> priority;
  std::optional<absl::Duration> timeout;
  Arguments arguments(
      "tessera embed [OPTION...] [TEXT...]",
      "Turns each text into a vector. Texts are the words given, one each (quote those with spaces), or "
      "the lines of standard input.");
  arguments.Group("Output (default: the first values of each vector)");
  arguments.AddFlag("values", "Print all values, a line a text.", &values);
  arguments.AddFlag("similarity", "Print the cosine similarity of each pair.", &similarity);
  arguments.AddFlag("json", "Print the answer as JSON.", &json);
  arguments.Group("Request");
  arguments.AddString("pooling", "KIND", "last, mean or cls. Default: the model's.", &pooling);
  arguments.AddFlag("no-normalize", "Do not scale the vectors to length 1.", &raw);
  arguments.AddFlag("truncate", "Cut texts that are too long instead of failing.", &truncate);
  arguments.AddInt("priority", "N", "Higher goes first. Default 0.", INT32_MIN, INT32_MAX, &priority);
  arguments.AddString("request-id", "ID", "A name for logs and `tessera abort`.", &request_id);
  arguments.AddString("model", "NAME", "Fail if the server serves another.", &model);
  arguments.AddDuration("timeout", "TIME", "Give up after this long. Default: never.", &timeout);
  context.connection.AddTo(arguments);
  arguments.Epilogue("Example:\n  tessera embed --similarity 'a small dog' 'a puppy' 'a stone bridge'");
  int exit_code;
  const auto rest = ParseOrExplain(arguments, words, &exit_code);
  if (!rest.has_value()) return exit_code;

  v1::EmbedRequest request;
  if (pooling == "last") {
    request.set_pooling(v1::POOLING_LAST);
  } else if (pooling == "mean") {
    request.set_pooling(v1::POOLING_MEAN);
  } else if (pooling == "cls") {
    request.set_pooling(v1::POOLING_CLS);
  } else if (!pooling.empty()) {
    return UsageError("embed", absl::StrCat("--pooling: got '", pooling, "'; expected last, mean or cls"));
  }
  if (json + values + similarity > 1)
    return UsageError("embed", "choose one of --json, --values and --similarity");
  if (rest->empty() && StdinIsTerminal()) std::cerr << "Reading a text a line; Ctrl-D ends them.\n";
  const std::vector<std::string> texts = rest->empty() ? ReadLines() : *rest;
  if (texts.empty())
    return UsageError("embed", "there is no text; give texts as words or as lines of standard input");
  for (size_t i = 0; i < texts.size(); ++i) {
    if (const size_t at = FirstInvalidUtf8(texts[i]); at != absl::string_view::npos) {
      return UsageError("embed", absl::StrCat("text ", i, " is not UTF-8 from byte ", at, " on"));
    }
  }
  if (raw) request.set_normalize(false);
  request.set_truncate(truncate);
  request.set_model(model);
  if (priority) request.set_priority(static_cast<int32_t>(*priority));
  std::unique_ptr<Client> client = Connect(context, &exit_code);
  if (client == nullptr) return exit_code;

  CallOptions call;
  call.cancellation = context.cancellation;
  if (timeout) call.timeout = *timeout;
  v1::EmbedResponse all;
  for (size_t begin = 0; begin < texts.size(); begin += kInputsPerCall) {
    request.clear_inputs();
    request.set_request_id(begin == 0 || request_id.empty()
                               ? request_id
                               : absl::StrCat(request_id, "-", begin / kInputsPerCall));
    for (size_t i = begin; i < texts.size() && i < begin + kInputsPerCall; ++i) {
      request.add_inputs()->set_text(texts[i]);
    }
    const absl::StatusOr<v1::EmbedResponse> response = client->Embed(request, call);
    if (!response.ok()) return Explain(context, response.status());
    const int tokens = all.prompt_tokens() + response->prompt_tokens();
    all.MergeFrom(*response);
    all.set_prompt_tokens(tokens);
  }
  if (json) {
    Print(Json(all, /*indented=*/true));
  } else if (similarity) {
    PrintSimilarity(all, texts);
  } else if (values) {
    PrintValues(all);
  } else {
    PrintShort(all, texts);
  }
  return OutputExitCode();
}

}  // namespace tessera::cli
