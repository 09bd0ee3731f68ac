// State that an instruction family keeps in a warp, a CTA or a cluster (tensor memory, bulk groups, ...), made on first
// use:  warp.State<MyState>()  with MyState derived from ExtensionState and default-constructible.
#ifndef TESSERA_TESTS_PTX_MACHINE_EXTENSION_H_
#define TESSERA_TESTS_PTX_MACHINE_EXTENSION_H_

#include <memory>
#include <typeindex>
#include <utility>
#include <vector>

namespace tessera::ptx {

class Cta;

struct ExtensionState {
  virtual ~ExtensionState() = default;
  // Called when all threads of the CTA have exited and its cluster's asynchronous operations are done; may Raise.
  virtual void OnCtaExit(Cta&) {}
};

class Extensible {
 public:
  template <class T>
  T& State() {
    for (auto& [type, state] : states_) {
      if (type == typeid(T)) return static_cast<T&>(*state);
    }
    states_.emplace_back(typeid(T), std::make_unique<T>());
    return static_cast<T&>(*states_.back().second);
  }

 protected:
  std::vector<std::pair<std::type_index, std::unique_ptr<ExtensionState>>> states_;
};

}  // namespace tessera::ptx

#endif  // TESSERA_TESTS_PTX_MACHINE_EXTENSION_H_
