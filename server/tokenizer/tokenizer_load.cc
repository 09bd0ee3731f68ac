// Reading a tokenizer from its files.

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/tokenizer/status_macros.h"
#include "server/tokenizer/text_file.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/tokenizer_impl.h"

namespace tessera {
namespace {

// Prefixes the JSON path of an error with the file it is in.
absl::Status InFile(absl::string_view file, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(file, ": ", status.message()));
}

}  // namespace

absl::Status Tokenizer::Impl::Read(const JsonView& json) {
  TOKENIZER_RETURN_IF_ERROR(json.ExpectObject());
  TOKENIZER_ASSIGN_OR_RETURN(normalizer, Normalizer::FromJson(json["normalizer"]));
  TOKENIZER_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::FromJson(json["pre_tokenizer"]));
  TOKENIZER_ASSIGN_OR_RETURN(post_processor, PostProcessor::FromJson(json["post_processor"]));
  TOKENIZER_ASSIGN_OR_RETURN(decoder, Decoder::FromJson(json["decoder"]));
  // `truncation` and `padding` are not read: a prompt is never cut or filled up.
  const JsonView model_json = json["model"];
  TOKENIZER_RETURN_IF_ERROR(model_json.ExpectObject());
  // Older files leave out the type of a BPE model.
  TOKENIZER_ASSIGN_OR_RETURN(const std::string type,
                             model_json["type"].StringOr(model_json["merges"].is_null() ? "" : "BPE"));
  if (type != "BPE") return model_json["type"].Unsupported(absl::StrCat("the model \"", type, "\""));
  TOKENIZER_ASSIGN_OR_RETURN(
      model, BpeModel::FromJson(model_json, pre_tokenizer != nullptr && pre_tokenizer->byte_level()));
  return ReadTokens(json);
}

absl::Status Tokenizer::Impl::ReadTokens(const JsonView& json) {
  TOKENIZER_ASSIGN_OR_RETURN(const std::vector<AddedToken> added, AddedTokensFromJson(json["added_tokens"]));
  TOKENIZER_ASSIGN_OR_RETURN(raw_matcher, AddedTokenMatcher::Create(added, false, normalizer.get()));
  TOKENIZER_ASSIGN_OR_RETURN(normalized_matcher, AddedTokenMatcher::Create(added, true, normalizer.get()));

  int32_t highest = -1;
  for (const auto& [token, id] : model->vocabulary()) highest = std::max(highest, id);
  for (const AddedToken& t : added) highest = std::max(highest, t.id);
  if (highest < 0) return json["model"]["vocab"].Error("the vocabulary is empty");
  tokens.resize(static_cast<size_t>(highest) + 1);
  for (const auto& [token, id] : model->vocabulary()) {
    tokens[id].spelling = token;
    tokens[id].exists = true;
  }
  for (const AddedToken& t : added) {
    Token& token = tokens[t.id];
    if (token.exists && token.spelling != t.content) {
      return json["added_tokens"].Error(absl::StrCat("the id ", t.id, " of \"", t.content, "\" is that of \"",
                                                     token.spelling, "\" in the vocabulary"));
    }
    if (const auto it = model->vocabulary().find(t.content);
        it != model->vocabulary().end() && it->second != t.id) {
      return json["added_tokens"].Error(absl::StrCat("\"", t.content, "\" has the id ", t.id, " here and ",
                                                     it->second, " in the vocabulary"));
    }
    token.spelling = t.content;
    token.exists = token.added = true;
    token.special = t.special;
    added_ids[t.content] = t.id;
  }
  for (Token& token : tokens) {
    if (!token.exists) continue;
    Decoder::Piece piece = decoder.Decode(token.spelling, /*first=*/false, token.added);
    token.bytes = std::move(piece.bytes);
    token.is_byte = piece.is_byte;
  }
  for (const std::vector<int32_t>* list : {&post_processor.before, &post_processor.after}) {
    for (const int32_t id : *list) {
      if (id > highest || !tokens[id].exists) {
        return json["post_processor"].Error(absl::StrCat("the id ", id, " is not in the vocabulary"));
      }
    }
  }
  return absl::OkStatus();
}

// {"bos_token": "<s>", "eos_token": {"content": "</s>", ...}, ...}
absl::Status Tokenizer::Impl::ReadConfig(const JsonView& json) {
  TOKENIZER_RETURN_IF_ERROR(json.ExpectObject());
  for (const auto& [key, value] : json.json().items()) {
    if (!absl::EndsWith(key, "_token")) continue;
    const JsonView view(value, absl::StrCat(json.path(), key));
    if (value.is_null() || value.is_boolean()) continue;  // add_bos_token and the like
    const JsonView content = value.is_object() ? view["content"] : view;
    TOKENIZER_ASSIGN_OR_RETURN(std::string text, content.String());
    std::optional<int32_t> id;
    if (const auto it = added_ids.find(text); it != added_ids.end()) {
      id = it->second;
    } else if (const auto in_model = model->vocabulary().find(text); in_model != model->vocabulary().end()) {
      id = in_model->second;
    }
    if (key == "bos_token") bos_id = id;
    if (key == "eos_token") eos_id = id;
    if (key == "pad_token") pad_id = id;
    named_tokens.emplace_back(key, std::move(text));
  }
  if (eos_id) eos_ids.push_back(*eos_id);
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::ReadGenerationConfig(const JsonView& json) {
  const JsonView eos = json["eos_token_id"];
  if (eos.is_null()) return absl::OkStatus();
  std::vector<JsonView> list = {eos};
  if (eos.json().is_array()) {
    TOKENIZER_ASSIGN_OR_RETURN(list, eos.Elements());
  }
  for (const JsonView& entry : list) {
    TOKENIZER_ASSIGN_OR_RETURN(const int64_t id, entry.Int(0, kMaxTokenId));
    eos_ids.push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Parse(absl::string_view tokenizer_json,
                                                                  absl::string_view tokenizer_config_json,
                                                                  absl::string_view generation_config_json) {
  auto impl = std::make_unique<Impl>();
  {
    TOKENIZER_ASSIGN_OR_RETURN(const nlohmann::json document,
                               JsonView::ParseDocument(tokenizer_json, "tokenizer.json"));
    TOKENIZER_RETURN_IF_ERROR(InFile("tokenizer.json", impl->Read(JsonView(document, ""))));
  }
  if (!tokenizer_config_json.empty()) {
    TOKENIZER_ASSIGN_OR_RETURN(const nlohmann::json document,
                               JsonView::ParseDocument(tokenizer_config_json, "tokenizer_config.json"));
    TOKENIZER_RETURN_IF_ERROR(InFile("tokenizer_config.json", impl->ReadConfig(JsonView(document, ""))));
  }
  if (!generation_config_json.empty()) {
    TOKENIZER_ASSIGN_OR_RETURN(const nlohmann::json document,
                               JsonView::ParseDocument(generation_config_json, "generation_config.json"));
    TOKENIZER_RETURN_IF_ERROR(
        InFile("generation_config.json", impl->ReadGenerationConfig(JsonView(document, ""))));
  }
  std::sort(impl->eos_ids.begin(), impl->eos_ids.end());
  impl->eos_ids.erase(std::unique(impl->eos_ids.begin(), impl->eos_ids.end()), impl->eos_ids.end());
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& directory) {
  TOKENIZER_ASSIGN_OR_RETURN(const std::optional<std::string> tokenizer,
                             ReadTextFile(directory + "/tokenizer.json"));
  if (!tokenizer) return absl::NotFoundError(absl::StrCat(directory, " has no tokenizer.json"));
  TOKENIZER_ASSIGN_OR_RETURN(const std::optional<std::string> config_text,
                             ReadTextFile(directory + "/tokenizer_config.json"));
  TOKENIZER_ASSIGN_OR_RETURN(const std::optional<std::string> map_text,
                             ReadTextFile(directory + "/special_tokens_map.json"));
  TOKENIZER_ASSIGN_OR_RETURN(std::optional<std::string> generation,
                             ReadTextFile(directory + "/generation_config.json"));
  // Without a generation_config.json, the model's config.json may name the EOS ids.
  if (!generation) {
    TOKENIZER_ASSIGN_OR_RETURN(generation, ReadTextFile(directory + "/config.json"));
  }
  // tokenizer_config.json goes before special_tokens_map.json.
  nlohmann::json config = nlohmann::json::object();
  for (const auto& [text, name] :
       {std::pair(&map_text, "special_tokens_map.json"), {&config_text, "tokenizer_config.json"}}) {
    if (!*text) continue;
    TOKENIZER_ASSIGN_OR_RETURN(nlohmann::json document,
                               JsonView::ParseDocument(**text, absl::StrCat(directory, "/", name)));
    if (!document.is_object())
      return absl::InvalidArgumentError(absl::StrCat(directory, "/", name, ": expected an object"));
    for (auto& [key, value] : document.items()) {
      if (!absl::EndsWith(key, "_token") || value.is_null() || value.is_boolean())
        continue;  // add_bos_token, ...
      // "<s>" or {"content": "<s>", ...}
      const nlohmann::json* content = &value;
      if (value.is_object() && value.contains("content")) content = &value["content"];
      if (!content->is_string()) {
        return absl::InvalidArgumentError(absl::StrCat(directory, "/", name, ": ", key,
                                                       ": expected a string, found ", content->type_name()));
      }
      config[key] = content->get_ref<const std::string&>();
    }
  }
  std::string config_json = config.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  auto result = Parse(*tokenizer, config_json, generation.value_or(""));
  if (!result.ok())
    return absl::Status(result.status().code(), absl::StrCat(directory, "/", result.status().message()));
  return result;
}

}  // namespace tessera
