#include "server/tokenizer/post_processor.h"

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/tokenizer.h"

namespace tessera {
namespace {

absl::StatusOr<PostProcessor> TemplateFromJson(const JsonView& json) {
  PostProcessor out;
  bool behind = false;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<JsonView> items, json["single"].Elements());
  for (const JsonView& item : items) {
    const JsonView special = item["SpecialToken"];
    if (!item["Sequence"].is_null()) {
      if (behind) return item.Unsupported("a template that repeats its sequence");
      behind = true;
      continue;
    }
    if (special.is_null()) return item.Expected("{\"SpecialToken\": ...} or {\"Sequence\": ...}");
    TESSERA_ASSIGN_OR_RETURN(const std::string name, special["id"].String());
    const JsonView ids = json["special_tokens"][name.c_str()]["ids"];
    TESSERA_ASSIGN_OR_RETURN(const std::vector<JsonView> id_list, ids.Elements());
    for (const JsonView& id : id_list) {
      TESSERA_ASSIGN_OR_RETURN(const int64_t value, id.Int(0, kMaxTokenId));
      (behind ? out.after : out.before).push_back(static_cast<int32_t>(value));
    }
  }
  if (!behind) return json["single"].Error("the template has no sequence in it");
  return out;
}

// ["[CLS]", 101]
absl::StatusOr<int32_t> TokenAndId(const JsonView& json) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<JsonView> pair, json.Elements());
  if (pair.size() != 2) return json.Error("expected a token and its id");
  TESSERA_ASSIGN_OR_RETURN(const int64_t id, pair[1].Int(0, kMaxTokenId));
  return static_cast<int32_t>(id);
}

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::FromJson(const JsonView& json) {
  PostProcessor out;
  if (json.is_null()) return out;
  TESSERA_ASSIGN_OR_RETURN(const std::string kind, json.Kind());
  if (kind == "ByteLevel") return out;
  if (kind == "TemplateProcessing") return TemplateFromJson(json);
  if (kind == "BertProcessing" || kind == "RobertaProcessing") {
    TESSERA_ASSIGN_OR_RETURN(const int32_t cls, TokenAndId(json["cls"]));
    TESSERA_ASSIGN_OR_RETURN(const int32_t sep, TokenAndId(json["sep"]));
    return PostProcessor{{cls}, {sep}};
  }
  if (kind == "Sequence") {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<JsonView> elements, json["processors"].Elements());
    for (const JsonView& element : elements) {
      TESSERA_ASSIGN_OR_RETURN(const PostProcessor part, FromJson(element));
      // Each works on the result of the one before it.
      out.before.insert(out.before.begin(), part.before.begin(), part.before.end());
      out.after.insert(out.after.end(), part.after.begin(), part.after.end());
    }
    return out;
  }
  return json.Unsupported(absl::StrCat("the post-processor \"", kind, "\""));
}

}  // namespace tessera
