// Filters on lists and dictionaries.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/status_macros.h"
#include "server/tokenizer/jinja/builtins.h"
#include "server/tokenizer/jinja/format.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

using Items = std::vector<Value>;

// The items of a value, counted.
absl::StatusOr<Items> ItemsOf(Interpreter* in, const Value& v) {
  TESSERA_ASSIGN_OR_RETURN(const std::shared_ptr<const Sequence> sequence, Iterate(v));
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(sequence->items.size()));
  return sequence->items;
}

// "a.b.0": one subscript after the other. What is missing on the way becomes `absent`, if there is one.
absl::StatusOr<Value> AttributePath(Interpreter* in, Value value, const Value& path,
                                    const std::optional<Value>& absent = std::nullopt) {
  const auto step = [&](const Value& key) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(value, in->GetItem(value, key));
    if (value.is_undefined() && absent && !absent->is_none()) value = *absent;
    return absl::OkStatus();
  };
  if (!path.is_string()) {
    TESSERA_RETURN_IF_ERROR(step(path));
    return value;
  }
  for (const absl::string_view part : absl::StrSplit(path.text()->view(), '.')) {
    int64_t index = 0;
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == absl::string_view::npos &&
                        absl::SimpleAtoi(part, &index);
    TESSERA_RETURN_IF_ERROR(step(number ? Value::Int(index) : Value::Str(part)));
  }
  return value;
}

Value IgnoreCase(const Value& v) { return v.is_string() ? Value::Str(Lower(*v.text())) : v; }

absl::Status SortBy(Items* keys, Items* items, bool reverse) {
  std::vector<size_t> order(keys->size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  absl::Status failed;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto less = reverse ? Less((*keys)[b], (*keys)[a]) : Less((*keys)[a], (*keys)[b]);
    if (!less.ok()) failed = less.status();
    return less.ok() && *less;
  });
  TESSERA_RETURN_IF_ERROR(failed);
  Items sorted;
  for (const size_t i : order) sorted.push_back((*items)[i]);
  *items = std::move(sorted);
  return absl::OkStatus();
}

absl::StatusOr<Value> LengthFilter(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("length", a, {}).status());
  if (v.is_undefined()) return Value::Int(0);
  if (v.is_string()) return Value::Int(static_cast<int64_t>(unicode::CountCodePoints(v.text()->view())));
  if (v.dict() != nullptr) return Value::Int(static_cast<int64_t>(v.dict()->size()));
  if (const Sequence* s = v.sequence(); s != nullptr && s->kind != Sequence::Kind::kGenerator) {
    return Value::Int(static_cast<int64_t>(s->items.size()));
  }
  return TemplateError(absl::StrCat("object of type '", v.type_name(), "' has no len()"));
}

absl::StatusOr<Value> DefaultFilter(Interpreter*, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("default", a, {"default_value", "boolean"}));
  const bool boolean = args[1] && args[1]->Truthy();
  if (v.is_undefined() || (boolean && !v.Truthy())) return args[0].value_or(Value::Str(""));
  return v;
}

absl::StatusOr<Value> FirstFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("first", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(const Items items, ItemsOf(in, v));
  return items.empty() ? Value::MakeUndefined("No first item, sequence was empty.") : items.front();
}

absl::StatusOr<Value> LastFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("last", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(const Items items, ItemsOf(in, v));
  return items.empty() ? Value::MakeUndefined("No last item, sequence was empty.") : items.back();
}

absl::StatusOr<Value> JoinFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("join", a, {"d", "attribute"}));
  TESSERA_ASSIGN_OR_RETURN(const Items items, ItemsOf(in, v));
  Text separator;
  if (args[0]) {
    TESSERA_ASSIGN_OR_RETURN(separator, ToString(in, *args[0]));
  }
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    Value item = items[i];
    if (args[1] && !args[1]->is_none()) {
      TESSERA_ASSIGN_OR_RETURN(item, AttributePath(in, item, *args[1]));
    }
    if (i > 0) out.Append(separator);
    out.Append(ToText(item));
    if (out.size() > (size_t{1} << 20)) TESSERA_RETURN_IF_ERROR(in->ChargeBytes(out.size()));
  }
  return in->MakeString(std::move(out));
}

absl::StatusOr<Value> ListFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("list", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(Items items, ItemsOf(in, v));
  return Value::List(std::move(items));
}

absl::StatusOr<Value> ItemsFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("items", a, {}).status());
  Items out;
  if (!v.is_undefined()) {
    if (v.dict() == nullptr) return TemplateError("Can only get item pairs from a mapping.");
    TESSERA_RETURN_IF_ERROR(in->ChargeSteps(v.dict()->size()));
    for (const Dict::Entry& e : v.dict()->entries()) {
      TESSERA_ASSIGN_OR_RETURN(Value pair, Value::List({e.key, e.value}, Sequence::Kind::kTuple));
      out.push_back(std::move(pair));
    }
  }
  return Value::List(std::move(out), Sequence::Kind::kGenerator);
}

absl::StatusOr<Value> DictSortFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("dictsort", a, {"case_sensitive", "by", "reverse"}));
  if (v.is_undefined()) return v.UndefinedError();
  if (v.dict() == nullptr) return TemplateError("dictsort takes a mapping");
  const bool by_value = args[1] && args[1]->is_string() && args[1]->text()->bytes() == "value";
  const bool case_sensitive = args[0] && args[0]->Truthy();
  TESSERA_RETURN_IF_ERROR(in->ChargeSteps(v.dict()->size()));
  Items keys, pairs;
  for (const Dict::Entry& e : v.dict()->entries()) {
    TESSERA_ASSIGN_OR_RETURN(Value pair, Value::List({e.key, e.value}, Sequence::Kind::kTuple));
    pairs.push_back(std::move(pair));
    const Value& key = by_value ? e.value : e.key;
    keys.push_back(case_sensitive ? key : IgnoreCase(key));
  }
  TESSERA_RETURN_IF_ERROR(SortBy(&keys, &pairs, args[2] && args[2]->Truthy()));
  return Value::List(std::move(pairs));
}

absl::StatusOr<Value> SortFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("sort", a, {"reverse", "case_sensitive", "attribute"}));
  const bool case_sensitive = args[1] && args[1]->Truthy();
  TESSERA_ASSIGN_OR_RETURN(Items items, ItemsOf(in, v));
  Items keys;
  for (const Value& item : items) {
    Value key = item;
    if (args[2] && args[2]->is_string()) {
      // Several attributes, with commas between, sort by the first, then the second, ...
      Items parts;
      for (const absl::string_view path : absl::StrSplit(args[2]->text()->view(), ',')) {
        TESSERA_ASSIGN_OR_RETURN(Value part, AttributePath(in, item, Value::Str(path)));
        parts.push_back(case_sensitive ? part : IgnoreCase(part));
      }
      TESSERA_ASSIGN_OR_RETURN(key, Value::List(std::move(parts)));
    } else {
      if (args[2] && !args[2]->is_none()) {
        TESSERA_ASSIGN_OR_RETURN(key, AttributePath(in, item, *args[2]));
      }
      if (!case_sensitive) key = IgnoreCase(key);
    }
    keys.push_back(std::move(key));
  }
  TESSERA_RETURN_IF_ERROR(SortBy(&keys, &items, args[0] && args[0]->Truthy()));
  return Value::List(std::move(items));
}

absl::StatusOr<Value> UniqueFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("unique", a, {"case_sensitive", "attribute"}));
  const bool case_sensitive = args[0] && args[0]->Truthy();
  TESSERA_ASSIGN_OR_RETURN(const Items items, ItemsOf(in, v));
  Dict seen;
  Items out;
  for (const Value& item : items) {
    Value key = item;
    if (args[1] && !args[1]->is_none()) {
      TESSERA_ASSIGN_OR_RETURN(key, AttributePath(in, item, *args[1]));
    }
    if (!case_sensitive) key = IgnoreCase(key);
    if (seen.Find(key) != nullptr) continue;
    if (!seen.Set(key, Value::Bool(true)))
      return TemplateError(absl::StrCat("unhashable type: '", key.type_name(), "'"));
    out.push_back(item);
  }
  return Value::List(std::move(out), Sequence::Kind::kGenerator);
}

absl::StatusOr<Value> ReverseFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_RETURN_IF_ERROR(Bind("reverse", a, {}).status());
  TESSERA_ASSIGN_OR_RETURN(Items items, ItemsOf(in, v));
  std::reverse(items.begin(), items.end());
  if (!v.is_string()) return Value::List(std::move(items), Sequence::Kind::kGenerator);
  Text out;
  for (const Value& item : items) out.Append(*item.text());
  return in->MakeString(std::move(out));
}

// map and select take anything that is false for an empty list.
absl::StatusOr<Items> ItemsOrNone(Interpreter* in, const Value& v) {
  return v.Truthy() ? ItemsOf(in, v) : Items();
}

absl::StatusOr<Value> MapFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const Items items, ItemsOrNone(in, v));
  Items out;
  if (a.positional.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("map", a, {"attribute", "default"}));
    if (!args[0]) return TemplateError("map requires a filter argument");
    for (const Value& item : items) {
      TESSERA_ASSIGN_OR_RETURN(Value value, AttributePath(in, item, *args[0], args[1]));
      out.push_back(std::move(value));
    }
  } else {
    TESSERA_ASSIGN_OR_RETURN(const Text name, ExpectString(a.positional[0], "the filter's name"));
    Arguments rest;
    rest.positional.assign(a.positional.begin() + 1, a.positional.end());
    rest.named = a.named;
    for (const Value& item : items) {
      TESSERA_ASSIGN_OR_RETURN(Value value, in->ApplyFilter(name.bytes(), item, rest));
      out.push_back(std::move(value));
    }
  }
  return Value::List(std::move(out), Sequence::Kind::kGenerator);
}

// select, reject, selectattr, rejectattr
absl::StatusOr<Value> Choose(Interpreter* in, const Value& v, const Arguments& a, bool by_attribute,
                             bool wanted) {
  TESSERA_ASSIGN_OR_RETURN(const Items items, ItemsOrNone(in, v));
  const size_t first = by_attribute ? 1 : 0;
  if (a.positional.size() < first) return TemplateError("Missing parameter for attribute name");
  std::string test;
  Arguments rest;
  if (a.positional.size() > first) {
    TESSERA_ASSIGN_OR_RETURN(const Text name, ExpectString(a.positional[first], "the test's name"));
    test = name.bytes();
    rest.positional.assign(a.positional.begin() + first + 1, a.positional.end());
    rest.named = a.named;
  }
  Items out;
  for (const Value& item : items) {
    Value tested = item;
    if (by_attribute) {
      TESSERA_ASSIGN_OR_RETURN(tested, AttributePath(in, item, a.positional[0]));
    }
    bool result = tested.Truthy();
    if (!test.empty()) {
      TESSERA_ASSIGN_OR_RETURN(result, in->ApplyTest(test, tested, rest));
    }
    if (result == wanted) out.push_back(item);
  }
  return Value::List(std::move(out), Sequence::Kind::kGenerator);
}

absl::StatusOr<Value> SumFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("sum", a, {"attribute", "start"}));
  TESSERA_ASSIGN_OR_RETURN(const Items items, ItemsOf(in, v));
  Value sum = args[1].value_or(Value::Int(0));
  for (const Value& item : items) {
    Value term = item;
    if (args[0] && !args[0]->is_none()) {
      TESSERA_ASSIGN_OR_RETURN(term, AttributePath(in, item, *args[0]));
    }
    TESSERA_ASSIGN_OR_RETURN(sum, in->Add(sum, term));
  }
  return sum;
}

absl::StatusOr<Value> Extreme(Interpreter* in, const Value& v, const Arguments& a, bool largest) {
  TESSERA_ASSIGN_OR_RETURN(const auto args,
                           Bind(largest ? "max" : "min", a, {"case_sensitive", "attribute"}));
  const bool case_sensitive = args[0] && args[0]->Truthy();
  TESSERA_ASSIGN_OR_RETURN(const Items items, ItemsOf(in, v));
  if (items.empty()) return Value::MakeUndefined("No aggregated item, sequence was empty.");
  const Value* best = nullptr;
  Value best_key;
  for (const Value& item : items) {
    Value key = item;
    if (args[1] && !args[1]->is_none()) {
      TESSERA_ASSIGN_OR_RETURN(key, AttributePath(in, item, *args[1]));
    }
    if (!case_sensitive) key = IgnoreCase(key);
    bool better = best == nullptr;
    if (!better) {
      TESSERA_ASSIGN_OR_RETURN(better, largest ? Less(best_key, key) : Less(key, best_key));
    }
    if (better) {
      best = &item;
      best_key = std::move(key);
    }
  }
  return *best;
}

absl::StatusOr<Value> AttrFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("attr", a, {"name"}));
  if (!args[0]) return TemplateError("attr takes a name");
  TESSERA_ASSIGN_OR_RETURN(const Text name, ExpectString(*args[0], "the name"));
  // Attributes only, not the keys of a dictionary.
  if (v.dict() != nullptr) return FindMethod(v, name.view());
  return in->GetAttribute(v, name.view());
}

absl::StatusOr<Value> BatchFilter(Interpreter* in, const Value& v, const Arguments& a) {
  TESSERA_ASSIGN_OR_RETURN(const auto args, Bind("batch", a, {"linecount", "fill_with"}));
  if (!args[0]) return TemplateError("batch takes a size");
  TESSERA_ASSIGN_OR_RETURN(const int64_t size, ToInteger(*args[0], "linecount"));
  if (size < 1 || size > 100'000) return TemplateError("linecount must be from 1 to 100000");
  TESSERA_ASSIGN_OR_RETURN(const Items items, ItemsOf(in, v));
  Items out;
  for (size_t i = 0; i < items.size(); i += size) {
    Items batch(items.begin() + i, items.begin() + std::min(items.size(), i + size));
    if (args[1] && !args[1]->is_none()) batch.resize(size, *args[1]);
    TESSERA_ASSIGN_OR_RETURN(Value value, Value::List(std::move(batch)));
    out.push_back(std::move(value));
  }
  return Value::List(std::move(out), Sequence::Kind::kGenerator);
}

}  // namespace

void AddSequenceFilters(FilterTable* table) {
  using Fn = FilterFunction;
  const std::pair<const char*, Fn> filters[] = {
      {"attr", AttrFilter},
      {"batch", BatchFilter},
      {"count", LengthFilter},
      {"d", DefaultFilter},
      {"default", DefaultFilter},
      {"dictsort", DictSortFilter},
      {"first", FirstFilter},
      {"items", ItemsFilter},
      {"join", JoinFilter},
      {"last", LastFilter},
      {"length", LengthFilter},
      {"list", ListFilter},
      {"map", MapFilter},
      {"max", [](Interpreter* in, const Value& v, const Arguments& a) { return Extreme(in, v, a, true); }},
      {"min", [](Interpreter* in, const Value& v, const Arguments& a) { return Extreme(in, v, a, false); }},
      {"reject",
       [](Interpreter* in, const Value& v, const Arguments& a) { return Choose(in, v, a, false, false); }},
      {"rejectattr",
       [](Interpreter* in, const Value& v, const Arguments& a) { return Choose(in, v, a, true, false); }},
      {"reverse", ReverseFilter},
      {"select",
       [](Interpreter* in, const Value& v, const Arguments& a) { return Choose(in, v, a, false, true); }},
      {"selectattr",
       [](Interpreter* in, const Value& v, const Arguments& a) { return Choose(in, v, a, true, true); }},
      {"sort", SortFilter},
      {"sum", SumFilter},
      {"unique", UniqueFilter},
  };
  for (const auto& [name, filter] : filters) table->emplace(name, filter);
}

FilterFunction FindFilter(absl::string_view name) {
  static const FilterTable* const kFilters = [] {
    auto* table = new FilterTable;
    AddStringFilters(table);
    AddNumberFilters(table);
    AddSequenceFilters(table);
    return table;
  }();
  const auto it = kFilters->find(name);
  return it == kFilters->end() ? nullptr : it->second;
}

}  // namespace tessera::jinja
