// Values of the template language, which are Python's: None, bool, int (64 bits), float, str, list, tuple, dict,
// and what Jinja adds: undefined, namespaces, macros and functions, the loop variable.
//
// Values are cheap to copy. All but namespaces, generators and cyclers are immutable.
#ifndef TESSERA_SERVER_TOKENIZER_JINJA_VALUE_H_
#define TESSERA_SERVER_TOKENIZER_JINJA_VALUE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/tokenizer/jinja/text.h"

namespace tessera::jinja {

class Interpreter;
class Value;

// Containers in containers, at most; bounds the recursion of everything that walks values.
inline constexpr int kMaxNesting = 200;

// An error of the template. INVALID_ARGUMENT.
absl::Status TemplateError(absl::string_view message);

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};
using Function = std::function<absl::StatusOr<Value>(Interpreter*, const Arguments&)>;

struct Callable {
  std::string name;
  Function function;
};

// Set aside from a missing variable by what an attempt to use it says.
struct Undefined {
  std::shared_ptr<const std::string> message;
};
struct None {};

struct Sequence {
  enum class Kind {
    kList,
    kTuple,
    kView,       // dict.items() and the like: no indexing
    kGenerator,  // the result of map, select, ...: can be iterated once, is always true, has no length
  };
  Kind kind = Kind::kList;
  std::vector<Value> items;
  mutable bool consumed = false;
  int depth = 1;
};

// In order of insertion.
class Dict {
 public:
  struct Entry;
  // Null if there is none; a key of a kind that cannot be one is found nowhere.
  const Value* Find(const Value& key) const;
  const Value* Find(absl::string_view key) const;
  // False if the key's kind cannot be one.
  bool Set(const Value& key, const Value& value);
  void Clear();
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }

 private:
  std::vector<Entry> entries_;
  absl::flat_hash_map<std::string, size_t> index_;
  int depth_ = 1;
};

struct Namespace {
  Dict attributes;
};

// The variable `loop`.
struct LoopState {
  std::shared_ptr<const Sequence> items;
  size_t index = 0;
  std::vector<Value> last_changed;
  bool has_changed = false;
};

class Value {
 public:
  using Data =
      std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
                   std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                   std::shared_ptr<const Callable>, std::shared_ptr<LoopState>>;

  Value() : data_(Undefined{}) {}
  explicit Value(Data data) : data_(std::move(data)) {}
  static Value MakeNone() { return Value(Data(None{})); }
  static Value Bool(bool b) { return Value(Data(b)); }
  static Value Int(int64_t i) { return Value(Data(i)); }
  static Value Float(double d) { return Value(Data(d)); }
  static Value Str(Text text) { return Value(Data(std::make_shared<const Text>(std::move(text)))); }
  // A string made by the engine: trusted.
  static Value Str(absl::string_view text) { return Str(Text(text, false)); }
  static Value MakeUndefined(std::string message) {
    return Value(Data(Undefined{std::make_shared<const std::string>(std::move(message))}));
  }
  static Value MakeFunction(std::string name, Function f) {
    return Value(Data(std::make_shared<const Callable>(Callable{std::move(name), std::move(f)})));
  }
  // Errors: nested beyond kMaxNesting.
  static absl::StatusOr<Value> List(std::vector<Value> items, Sequence::Kind kind = Sequence::Kind::kList);
  static absl::StatusOr<Value> FromDict(Dict dict);
  // What came from outside: all strings are untrusted.
  static absl::StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int depth = 0);

  const Data& data() const { return data_; }
  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<int64_t>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_string() const { return text() != nullptr; }

  // Null if it is not of that kind.
  const Text* text() const;
  const Sequence* sequence() const;
  const Dict* dict() const;
  Namespace* ns() const;
  const Callable* callable() const;
  LoopState* loop() const;
  std::shared_ptr<const Sequence> shared_sequence() const;

  int64_t AsInt() const;    // is_integral()
  double AsDouble() const;  // is_number()
  bool Truthy() const;
  int depth() const;  // of nesting; 0 for scalars
  // Python's name for the type: "str", "NoneType", ...
  const char* type_name() const;
  // The error of using an undefined value.
  absl::Status UndefinedError() const;

 private:
  Data data_;
};

struct Dict::Entry {
  Value key, value;
};

// Python's ==, and < where it is defined for the two kinds.
// Printing and comparing walk into nested values, and a value that holds the same list twice, over and over, is small to
// make and endless to walk. So the walks of one rendering, on one thread, share a number of visits; once it is spent they
// end early with any result, and the interpreter ends the rendering with an error.
class VisitBudget {
 public:
  explicit VisitBudget(int64_t visits);  // of the rendering that starts now on this thread
  ~VisitBudget();
  VisitBudget(const VisitBudget&) = delete;
  VisitBudget& operator=(const VisitBudget&) = delete;

  static bool Spend();  // one visit; false if none is left
  static bool Exhausted();

 private:
  const int64_t outer_;
};

bool Equal(const Value& a, const Value& b);
absl::StatusOr<bool> Less(const Value& a, const Value& b);
// The items that iteration yields. Takes a generator's items away.
absl::StatusOr<std::shared_ptr<const Sequence>> Iterate(const Value& value);

}  // namespace tessera::jinja

#endif  // TESSERA_SERVER_TOKENIZER_JINJA_VALUE_H_
