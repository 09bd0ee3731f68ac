#include "server/tokenizer/tokenizer_config.h"

#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/json_view.h"
#include "server/tokenizer/text_file.h"

namespace tessera {
namespace {

constexpr const char* kSwitches[] = {"add_bos_token", "add_eos_token", "legacy"};
constexpr const char* kTokenFlags[] = {"content", "special", "single_word", "lstrip", "rstrip", "normalized"};

// Null if there is no such file.
absl::StatusOr<nlohmann::json> ReadObject(const std::string& directory, const char* name) {
  const std::string path = absl::StrCat(directory, "/", name);
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadTextFile(path));
  if (!text) return nlohmann::json(nullptr);
  TESSERA_ASSIGN_OR_RETURN(nlohmann::json document, JsonView::ParseDocument(*text, path));
  if (!document.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": expected an object"));
  return document;
}

// "<s>" or {"content": "<s>", ...}
absl::Status AddNamedTokens(const std::string& path, const nlohmann::json& document, nlohmann::json* config) {
  for (const auto& [key, value] : document.items()) {
    if (!absl::EndsWith(key, "_token") || value.is_null() || value.is_boolean()) continue;
    const nlohmann::json* content = &value;
    if (value.is_object() && value.contains("content")) content = &value["content"];
    if (!content->is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", key, ": expected a string, found ", content->type_name()));
    }
    (*config)[key] = content->get_ref<const std::string&>();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> GatherTokenizerConfig(const std::string& directory) {
  nlohmann::json config = nlohmann::json::object();
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json added, ReadObject(directory, "added_tokens.json"));
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json map, ReadObject(directory, "special_tokens_map.json"));
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json main, ReadObject(directory, "tokenizer_config.json"));
  // {"<|im_end|>": 32000, ...}
  nlohmann::json tokens = nlohmann::json::object();
  if (added.is_object()) {
    for (const auto& [content, id] : added.items()) {
      if (!id.is_number_integer()) {
        return absl::InvalidArgumentError(absl::StrCat(directory, "/added_tokens.json: ", content,
                                                       ": expected an id, found ", id.type_name()));
      }
      tokens[id.dump()] = {{"content", content}, {"normalized", false}};
    }
  }
  if (map.is_object()) {
    TESSERA_RETURN_IF_ERROR(AddNamedTokens(directory + "/special_tokens_map.json", map, &config));
  }
  if (main.is_object()) {
    TESSERA_RETURN_IF_ERROR(AddNamedTokens(directory + "/tokenizer_config.json", main, &config));
    for (const char* name : kSwitches) {
      if (const auto it = main.find(name); it != main.end() && it->is_boolean())
        config[name] = it->get<bool>();
    }
    const auto decoder = main.find("added_tokens_decoder");
    if (decoder != main.end() && decoder->is_object()) {
      for (const auto& [id, token] : decoder->items()) {
        nlohmann::json& out = tokens[id] = nlohmann::json::object();
        for (const char* name : kTokenFlags) {
          if (!token.is_object()) continue;
          if (const auto it = token.find(name); it != token.end() && it->is_primitive()) out[name] = *it;
        }
      }
    }
  }
  if (!tokens.empty()) config["added_tokens_decoder"] = std::move(tokens);
  return config.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace tessera
