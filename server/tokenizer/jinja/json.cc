// Values as JSON, as Python's json.dumps writes them.
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/characters.h"
#include "server/tokenizer/jinja/format.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

void JsonString(const Text& text, bool ensure_ascii, Text* out) {
  out->Append("\"");
  AppendMapped(
      text,
      [ensure_ascii](char32_t c, std::string* to) {
        const auto hex = [to](uint32_t unit) {
          absl::StrAppend(to, "\\u", absl::Hex(unit, absl::kZeroPad4));
        };
        static constexpr absl::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
        if (const size_t k = c < 0x80 ? kFrom.find(static_cast<char>(c)) : absl::string_view::npos;
            k != absl::string_view::npos) {
          to->push_back('\\');
          to->push_back(kTo[k]);
        } else if (c < 0x20 || (ensure_ascii && c > 0x7E && c < 0x10000)) {
          hex(c);
        } else if (ensure_ascii && c >= 0x10000) {
          hex(0xD800 + ((c - 0x10000) >> 10));
          hex(0xDC00 + ((c - 0x10000) & 0x3FF));
        } else {
          unicode::AppendUtf8(c, to);
        }
      },
      out);
  out->Append("\"");
}

std::string JsonNumber(const Value& value) {
  if (value.is_bool()) return value.AsInt() != 0 ? "true" : "false";
  if (value.is_int()) return absl::StrCat(value.AsInt());
  const double d = value.AsDouble();
  if (std::isnan(d)) return "NaN";
  if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
  return FormatFloat(d);
}

absl::Status JsonValue(const Value& value, const JsonStyle& style, int level, Text* out) {
  if (!VisitBudget::Spend())
    return absl::ResourceExhaustedError("the template prints too many nested values");
  if (value.is_none()) {
    out->Append("null");
    return absl::OkStatus();
  }
  if (value.is_number()) {
    out->Append(JsonNumber(value));
    return absl::OkStatus();
  }
  if (const Text* text = value.text()) {
    JsonString(*text, style.ensure_ascii, out);
    return absl::OkStatus();
  }
  const auto new_line = [&](int depth) {
    if (!style.indent) return;
    out->Append("\n");
    for (int i = 0; i < depth; ++i) out->Append(*style.indent);
  };
  if (const Sequence* s = value.sequence(); s != nullptr && s->kind <= Sequence::Kind::kTuple) {
    if (s->items.empty()) {
      out->Append("[]");
      return absl::OkStatus();
    }
    out->Append("[");
    for (size_t i = 0; i < s->items.size(); ++i) {
      if (i > 0) out->Append(style.item_separator);
      new_line(level + 1);
      TESSERA_RETURN_IF_ERROR(JsonValue(s->items[i], style, level + 1, out));
    }
    new_line(level);
    out->Append("]");
    return absl::OkStatus();
  }
  if (const Dict* d = value.dict()) {
    if (d->size() == 0) {
      out->Append("{}");
      return absl::OkStatus();
    }
    std::vector<const Dict::Entry*> entries;
    for (const Dict::Entry& e : d->entries()) entries.push_back(&e);
    if (style.sort_keys) {
      absl::Status failed;
      std::stable_sort(entries.begin(), entries.end(), [&](const Dict::Entry* a, const Dict::Entry* b) {
        const absl::StatusOr<bool> less = Less(a->key, b->key);
        if (!less.ok()) failed = less.status();
        return less.ok() && *less;
      });
      TESSERA_RETURN_IF_ERROR(failed);
    }
    out->Append("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out->Append(style.item_separator);
      new_line(level + 1);
      const Value& key = entries[i]->key;
      if (key.is_string()) {
        JsonString(*key.text(), style.ensure_ascii, out);
      } else if (key.is_number() || key.is_none()) {
        out->Append(absl::StrCat("\"", key.is_none() ? "null" : JsonNumber(key), "\""));
      } else {
        return TemplateError(
            absl::StrCat("keys must be str, int, float, bool or None, not ", key.type_name()));
      }
      out->Append(style.key_separator);
      TESSERA_RETURN_IF_ERROR(JsonValue(entries[i]->value, style, level + 1, out));
    }
    new_line(level);
    out->Append("}");
    return absl::OkStatus();
  }
  return TemplateError(absl::StrCat("Object of type ", value.type_name(), " is not JSON serializable"));
}

}  // namespace

absl::StatusOr<Text> ToJson(const Value& value, const JsonStyle& style) {
  Text out;
  TESSERA_RETURN_IF_ERROR(JsonValue(value, style, 0, &out));
  return out;
}

}  // namespace tessera::jinja
