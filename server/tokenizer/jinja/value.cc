#include "server/tokenizer/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/status_macros.h"
#include "server/tokenizer/unicode.h"

namespace tessera::jinja {
namespace {

template <typename T>
const T* Get(const Value::Data& data) {
  const auto* p = std::get_if<std::shared_ptr<const T>>(&data);
  return p == nullptr ? nullptr : p->get();
}

// What makes two keys one: 1, 1.0 and True are the same key in Python.
bool KeyOf(const Value& key, std::string* out) {
  if (const Text* text = key.text()) {
    *out = absl::StrCat("s", text->bytes());
  } else if (key.is_integral()) {
    *out = absl::StrCat("i", key.AsInt());
  } else if (key.is_float()) {
    const double d = key.AsDouble();
    *out = d == std::floor(d) && std::abs(d) < 1e15 ? absl::StrCat("i", static_cast<int64_t>(d))
                                                    : absl::StrCat("f", d);
  } else if (key.is_none()) {
    out->assign(1, 'n');
  } else if (const Sequence* s = key.sequence(); s != nullptr && s->kind == Sequence::Kind::kTuple) {
    out->assign(1, 't');
    for (const Value& item : s->items) {
      std::string part;
      if (!KeyOf(item, &part)) return false;
      absl::StrAppend(out, part.size(), ":", part);
    }
  } else {
    return false;
  }
  return true;
}

}  // namespace

absl::Status TemplateError(absl::string_view message) { return absl::InvalidArgumentError(message); }

const Value* Dict::Find(const Value& key) const {
  std::string k;
  if (!KeyOf(key, &k)) return nullptr;
  const auto it = index_.find(k);
  return it == index_.end() ? nullptr : &entries_[it->second].value;
}

const Value* Dict::Find(absl::string_view key) const {
  const auto it = index_.find(absl::StrCat("s", key));
  return it == index_.end() ? nullptr : &entries_[it->second].value;
}

bool Dict::Set(const Value& key, const Value& value) {
  std::string k;
  if (!KeyOf(key, &k)) return false;
  depth_ = std::max({depth_, value.depth() + 1, key.depth() + 1});
  const auto [it, inserted] = index_.emplace(std::move(k), entries_.size());
  if (inserted) {
    entries_.push_back({key, value});
  } else {
    entries_[it->second].value = value;
  }
  return true;
}

void Dict::Clear() {
  entries_.clear();
  index_.clear();
}

absl::StatusOr<Value> Value::List(std::vector<Value> items, Sequence::Kind kind) {
  auto list = std::make_shared<Sequence>();
  for (const Value& item : items) list->depth = std::max(list->depth, item.depth() + 1);
  if (list->depth > kMaxNesting) return TemplateError("values are nested too deeply");
  list->items = std::move(items);
  list->kind = kind;
  return Value(Data(std::shared_ptr<const Sequence>(std::move(list))));
}

absl::StatusOr<Value> Value::FromDict(Dict dict) {
  if (dict.depth() > kMaxNesting) return TemplateError("values are nested too deeply");
  return Value(Data(std::shared_ptr<const Dict>(std::make_shared<Dict>(std::move(dict)))));
}

absl::StatusOr<Value> Value::FromJson(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxNesting / 2) return absl::InvalidArgumentError("the messages are nested too deeply");
  switch (json.type()) {
    case nlohmann::json::value_t::null:
      return MakeNone();
    case nlohmann::json::value_t::boolean:
      return Bool(json.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return Int(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return absl::InvalidArgumentError(absl::StrCat("the number ", json.get<uint64_t>(), " is too large"));
      }
      return Int(json.get<int64_t>());
    case nlohmann::json::value_t::number_float:
      return Float(json.get<double>());
    case nlohmann::json::value_t::string: {
      const std::string& text = json.get_ref<const std::string&>();
      if (const size_t bad = unicode::FindInvalid(text); bad != absl::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat("a text is not valid UTF-8 at byte ", bad));
      }
      return Str(Text(text, /*untrusted=*/true));
    }
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& element : json) {
        TESSERA_ASSIGN_OR_RETURN(Value item, FromJson(element, depth + 1));
        items.push_back(std::move(item));
      }
      return List(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      Dict dict;
      for (const auto& [key, element] : json.items()) {
        TESSERA_ASSIGN_OR_RETURN(const Value item, FromJson(element, depth + 1));
        if (unicode::FindInvalid(key) != absl::string_view::npos) {
          return absl::InvalidArgumentError("a key is not valid UTF-8");
        }
        dict.Set(Str(Text(key, /*untrusted=*/true)), item);
      }
      return FromDict(std::move(dict));
    }
    default:
      return absl::InvalidArgumentError("binary values are not supported");
  }
}

const Text* Value::text() const { return Get<Text>(data_); }
const Sequence* Value::sequence() const { return Get<Sequence>(data_); }
const Dict* Value::dict() const { return Get<Dict>(data_); }
const Callable* Value::callable() const { return Get<Callable>(data_); }
Namespace* Value::ns() const {
  const auto* p = std::get_if<std::shared_ptr<Namespace>>(&data_);
  return p == nullptr ? nullptr : p->get();
}
LoopState* Value::loop() const {
  const auto* p = std::get_if<std::shared_ptr<LoopState>>(&data_);
  return p == nullptr ? nullptr : p->get();
}
std::shared_ptr<const Sequence> Value::shared_sequence() const {
  const auto* p = std::get_if<std::shared_ptr<const Sequence>>(&data_);
  return p == nullptr ? nullptr : *p;
}

int64_t Value::AsInt() const {
  if (const bool* b = std::get_if<bool>(&data_)) return *b ? 1 : 0;
  return std::get<int64_t>(data_);
}

double Value::AsDouble() const {
  if (const double* d = std::get_if<double>(&data_)) return *d;
  return static_cast<double>(AsInt());
}

bool Value::Truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return AsDouble() != 0;
  if (const Text* t = text()) return !t->empty();
  if (const Sequence* s = sequence()) return s->kind == Sequence::Kind::kGenerator || !s->items.empty();
  if (const Dict* d = dict()) return d->size() != 0;
  return true;
}

int Value::depth() const {
  if (const Sequence* s = sequence()) return s->depth;
  if (const Dict* d = dict()) return d->depth();
  return 0;
}

const char* Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (dict() != nullptr) return "dict";
  if (ns() != nullptr) return "Namespace";
  if (callable() != nullptr) return "function";
  if (loop() != nullptr) return "LoopContext";
  switch (sequence()->kind) {
    case Sequence::Kind::kTuple:
      return "tuple";
    case Sequence::Kind::kView:
      return "dict_items";
    case Sequence::Kind::kGenerator:
      return "generator";
    default:
      return "list";
  }
}

absl::Status Value::UndefinedError() const {
  const auto* u = std::get_if<Undefined>(&data_);
  return TemplateError(u != nullptr && u->message != nullptr ? *u->message : "a value is undefined");
}

namespace {
// Outside of a rendering (a test, say) walks are not bounded.
thread_local int64_t visits_left = std::numeric_limits<int64_t>::max();
}  // namespace

VisitBudget::VisitBudget(int64_t visits) : outer_(visits_left) { visits_left = visits; }
VisitBudget::~VisitBudget() { visits_left = outer_; }
bool VisitBudget::Spend() { return --visits_left >= 0; }
bool VisitBudget::Exhausted() { return visits_left < 0; }

bool Equal(const Value& a, const Value& b) {
  if (!VisitBudget::Spend()) return true;
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.AsInt() == b.AsInt();
    return a.AsDouble() == b.AsDouble();
  }
  if (a.is_string() && b.is_string()) return a.text()->bytes() == b.text()->bytes();
  if (const Sequence* x = a.sequence(), *y = b.sequence(); x != nullptr && y != nullptr) {
    if (x->kind != y->kind || x->kind == Sequence::Kind::kGenerator) return x == y;
    return std::equal(x->items.begin(), x->items.end(), y->items.begin(), y->items.end(), Equal);
  }
  if (const Dict* x = a.dict(), *y = b.dict(); x != nullptr && y != nullptr) {
    if (x->size() != y->size()) return false;
    for (const Dict::Entry& e : x->entries()) {
      const Value* other = y->Find(e.key);
      if (other == nullptr || !Equal(e.value, *other)) return false;
    }
    return true;
  }
  if (a.is_none() || a.is_undefined()) return a.data().index() == b.data().index();
  if (a.ns() != nullptr) return a.ns() == b.ns();
  if (a.callable() != nullptr) return a.callable() == b.callable();
  return a.loop() != nullptr && a.loop() == b.loop();
}

absl::StatusOr<bool> Less(const Value& a, const Value& b) {
  if (!VisitBudget::Spend()) return false;
  if (a.is_undefined()) return a.UndefinedError();
  if (b.is_undefined()) return b.UndefinedError();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.AsInt() < b.AsInt();
    return a.AsDouble() < b.AsDouble();
  }
  // Code points in UTF-8 sort as bytes do.
  if (a.is_string() && b.is_string()) return a.text()->bytes() < b.text()->bytes();
  const Sequence *x = a.sequence(), *y = b.sequence();
  if (x != nullptr && y != nullptr && x->kind == y->kind) {
    for (size_t i = 0; i < x->items.size() && i < y->items.size(); ++i) {
      if (!Equal(x->items[i], y->items[i])) return Less(x->items[i], y->items[i]);
    }
    return x->items.size() < y->items.size();
  }
  return TemplateError(
      absl::StrCat("'<' not supported between instances of '", a.type_name(), "' and '", b.type_name(), "'"));
}

absl::StatusOr<std::shared_ptr<const Sequence>> Iterate(const Value& value) {
  if (auto sequence = value.shared_sequence()) {
    if (sequence->kind != Sequence::Kind::kGenerator) return sequence;
    if (sequence->consumed) return std::make_shared<const Sequence>();
    sequence->consumed = true;
    return sequence;
  }
  auto items = std::make_shared<Sequence>();
  if (value.is_undefined()) return std::shared_ptr<const Sequence>(items);
  if (const Text* text = value.text()) {
    for (size_t pos = 0; pos < text->size();) {
      const size_t next = pos + unicode::SequenceLength(text->bytes()[pos]);
      items->items.push_back(Value::Str(text->Substr(pos, next)));
      pos = next;
    }
    return std::shared_ptr<const Sequence>(items);
  }
  const Dict* dict = value.dict();
  if (dict == nullptr) return TemplateError(absl::StrCat("'", value.type_name(), "' object is not iterable"));
  for (const Dict::Entry& e : dict->entries()) items->items.push_back(e.key);
  items->depth = dict->depth();
  return std::shared_ptr<const Sequence>(items);
}

}  // namespace tessera::jinja
