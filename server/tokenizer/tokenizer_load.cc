// Reading a tokenizer from its files.

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/bpe.h"
#include "server/tokenizer/text_file.h"
#include "server/tokenizer/tokenizer.h"
#include "server/tokenizer/tokenizer_config.h"
#include "server/tokenizer/tokenizer_impl.h"
#include "server/tokenizer/unigram.h"

namespace tessera {
namespace {

// Null for an empty text.
absl::StatusOr<nlohmann::json> ParseConfig(absl::string_view text) {
  if (text.empty()) return nlohmann::json(nullptr);
  return JsonView::ParseDocument(text, "tokenizer_config.json");
}

// Prefixes the JSON path of an error with the file it is in.
absl::Status InFile(absl::string_view file, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(file, ": ", status.message()));
}

}  // namespace

absl::Status Tokenizer::Impl::Read(const JsonView& json) {
  TESSERA_RETURN_IF_ERROR(json.ExpectObject());
  TESSERA_ASSIGN_OR_RETURN(normalizer, Normalizer::FromJson(json["normalizer"]));
  TESSERA_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::FromJson(json["pre_tokenizer"]));
  TESSERA_ASSIGN_OR_RETURN(post_processor, PostProcessor::FromJson(json["post_processor"]));
  TESSERA_ASSIGN_OR_RETURN(decoder, Decoder::FromJson(json["decoder"]));
  // `truncation` and `padding` are not read: a prompt is never cut or filled up.
  const JsonView model_json = json["model"];
  TESSERA_RETURN_IF_ERROR(model_json.ExpectObject());
  // Older files leave out the type of a BPE model.
  TESSERA_ASSIGN_OR_RETURN(const std::string type,
                           model_json["type"].StringOr(model_json["merges"].is_null() ? "" : "BPE"));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<AddedToken> added, AddedTokensFromJson(json["added_tokens"]));
  if (type == "BPE") {
    TESSERA_ASSIGN_OR_RETURN(
        model, BpeModel::FromJson(model_json, pre_tokenizer != nullptr && pre_tokenizer->byte_level()));
  } else if (type == "Unigram") {
    absl::flat_hash_set<std::string> special;
    for (const AddedToken& t : added) {
      if (t.special) special.insert(t.content);
    }
    TESSERA_ASSIGN_OR_RETURN(model, UnigramModel::FromJson(model_json, special));
  } else {
    return model_json["type"].Unsupported(absl::StrCat("the model \"", type, "\""));
  }
  TESSERA_RETURN_IF_ERROR(AddTokens(added, json["added_tokens"]));
  for (const std::vector<int32_t>* list : {&post_processor.before, &post_processor.after}) {
    for (const int32_t id : *list) {
      if (id >= static_cast<int32_t>(tokens.size()) || !tokens[id].exists) {
        return json["post_processor"].Error(absl::StrCat("the id ", id, " is not in the vocabulary"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::AddTokens(const std::vector<AddedToken>& added, const JsonView& place) {
  TESSERA_ASSIGN_OR_RETURN(raw_matcher, AddedTokenMatcher::Create(added, false, normalizer.get()));
  TESSERA_ASSIGN_OR_RETURN(normalized_matcher, AddedTokenMatcher::Create(added, true, normalizer.get()));

  int32_t highest = -1;
  for (const auto& [token, id] : model->vocabulary()) highest = std::max(highest, id);
  for (const AddedToken& t : added) highest = std::max(highest, t.id);
  if (highest < 0) return place.Error("there is no token, here or in the vocabulary");
  tokens.resize(static_cast<size_t>(highest) + 1);
  for (const auto& [token, id] : model->vocabulary()) {
    tokens[id].spelling = token;
    tokens[id].exists = true;
  }
  for (const AddedToken& t : added) {
    Token& token = tokens[t.id];
    if (token.exists && token.spelling != t.content) {
      return place.Error(absl::StrCat("the id ", t.id, " of \"", t.content, "\" is that of \"",
                                      token.spelling, "\" in the vocabulary"));
    }
    if (const auto it = model->vocabulary().find(t.content);
        it != model->vocabulary().end() && it->second != t.id) {
      return place.Error(absl::StrCat("\"", t.content, "\" has the id ", t.id, " here and ", it->second,
                                      " in the vocabulary"));
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
  return absl::OkStatus();
}

// {"bos_token": "<s>", "eos_token": {"content": "</s>", ...}, ...}
absl::Status Tokenizer::Impl::ReadConfig(const JsonView& json) {
  TESSERA_RETURN_IF_ERROR(json.ExpectObject());
  for (const auto& [key, value] : json.json().items()) {
    if (!absl::EndsWith(key, "_token")) continue;
    const JsonView view(value, absl::StrCat(json.path(), key));
    if (value.is_null() || value.is_boolean()) continue;  // add_bos_token and the like
    const JsonView content = value.is_object() ? view["content"] : view;
    TESSERA_ASSIGN_OR_RETURN(std::string text, content.String());
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
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::ReadGenerationConfig(const JsonView& json) {
  const JsonView eos = json["eos_token_id"];
  if (eos.is_null()) return absl::OkStatus();
  std::vector<JsonView> list = {eos};
  if (eos.json().is_array()) {
    TESSERA_ASSIGN_OR_RETURN(list, eos.Elements());
  }
  for (const JsonView& entry : list) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t id, entry.Int(0, kMaxTokenId));
    eos_ids.push_back(static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Finish(std::unique_ptr<Impl> impl,
                                                                   const JsonView& config,
                                                                   absl::string_view generation_config_json) {
  if (!config.is_null()) {
    TESSERA_RETURN_IF_ERROR(InFile("tokenizer_config.json", impl->ReadConfig(config)));
  }
  if (impl->eos_id) impl->eos_ids.push_back(*impl->eos_id);
  if (!generation_config_json.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const nlohmann::json document,
                             JsonView::ParseDocument(generation_config_json, "generation_config.json"));
    TESSERA_RETURN_IF_ERROR(
        InFile("generation_config.json", impl->ReadGenerationConfig(JsonView(document, ""))));
  }
  std::sort(impl->eos_ids.begin(), impl->eos_ids.end());
  impl->eos_ids.erase(std::unique(impl->eos_ids.begin(), impl->eos_ids.end()), impl->eos_ids.end());
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Parse(absl::string_view tokenizer_json,
                                                                  absl::string_view tokenizer_config_json,
                                                                  absl::string_view generation_config_json) {
  auto impl = std::make_unique<Impl>();
  {
    TESSERA_ASSIGN_OR_RETURN(const nlohmann::json document,
                             JsonView::ParseDocument(tokenizer_json, "tokenizer.json"));
    TESSERA_RETURN_IF_ERROR(InFile("tokenizer.json", impl->Read(JsonView(document, ""))));
  }
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json config, ParseConfig(tokenizer_config_json));
  return Finish(std::move(impl), JsonView(config, ""), generation_config_json);
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::ParseSentencePiece(
    absl::string_view tokenizer_model, absl::string_view tokenizer_config_json,
    absl::string_view generation_config_json) {
  auto impl = std::make_unique<Impl>();
  TESSERA_ASSIGN_OR_RETURN(const nlohmann::json config, ParseConfig(tokenizer_config_json));
  TESSERA_RETURN_IF_ERROR(
      InFile("tokenizer.model", impl->ReadSentencePiece(tokenizer_model, JsonView(config, ""))));
  return Finish(std::move(impl), JsonView(config, ""), generation_config_json);
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& directory) {
  TESSERA_ASSIGN_OR_RETURN(std::optional<std::string> file, ReadTextFile(directory + "/tokenizer.json"));
  const bool is_json = file.has_value();
  if (!is_json) {
    TESSERA_ASSIGN_OR_RETURN(file, ReadTextFile(directory + "/tokenizer.model"));
  }
  if (!file) {
    return absl::NotFoundError(absl::StrCat(directory, " has neither tokenizer.json nor tokenizer.model"));
  }
  TESSERA_ASSIGN_OR_RETURN(std::optional<std::string> generation,
                           ReadTextFile(directory + "/generation_config.json"));
  // Without a generation_config.json, the model's config.json may name the EOS ids.
  if (!generation) {
    TESSERA_ASSIGN_OR_RETURN(generation, ReadTextFile(directory + "/config.json"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::string config, GatherTokenizerConfig(directory));
  auto result = is_json ? Parse(*file, config, generation.value_or(""))
                        : ParseSentencePiece(*file, config, generation.value_or(""));
  if (!result.ok())
    return absl::Status(result.status().code(), absl::StrCat(directory, "/", result.status().message()));
  return result;
}

}  // namespace tessera
