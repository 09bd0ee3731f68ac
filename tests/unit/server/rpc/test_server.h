#ifndef TESSERA_TESTS_UNIT_SERVER_RPC_TEST_SERVER_H_
#define TESSERA_TESTS_UNIT_SERVER_RPC_TEST_SERVER_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/backend/null/null_backend.h"
#include "server/engine/engine.h"
#include "server/metrics/metrics.h"
#include "server/rpc/rpc_server.h"
#include "tessera/v1/control.grpc.pb.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera {

// A byte-level tokenizer: token id b is byte b; kImStart and kImEnd are special tokens.
inline constexpr int32_t kImStart = 256;
inline constexpr int32_t kImEnd = 257;
inline constexpr int32_t kVocabSize = 320;  // wider than the tokenizer's 258, as padded models are
std::shared_ptr<const Tokenizer> ByteTokenizer();
// The same with a BOS token, kBos, that its post-processor puts before each text.
inline constexpr int32_t kBos = 258;
std::shared_ptr<const Tokenizer> ByteTokenizerWithBos();

// A model over ByteTokenizer that answers with the letters a to z.
ServedModel TestModel(int32_t max_context = 2048);

struct TestServerOptions {
  RpcServerOptions rpc;
  NullBackendConfig backend;
  EngineConfig engine;
  int32_t num_blocks = 1024;
  bool serve = true;                 // false: stays in "starting" until Serve is called
  std::optional<ServedModel> model;  // default: TestModel()
};

// A whole server in this process, over the null backend, and a channel to it.
class TestServer {
 public:
  explicit TestServer(TestServerOptions options = {});
  ~TestServer();

  void Serve();

  std::shared_ptr<grpc::Channel> NewChannel() const;
  v1::Inference::Stub& inference() { return *inference_; }
  v1::Control::Stub& control() { return *control_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }
  RpcServer& rpc() { return *rpc_; }
  Engine& engine() { return *engine_; }
  Metrics& metrics() { return *metrics_; }
  // One sample of the exposition, for example `tessera_running`.
  double Metric(const std::string& name) const;
  // Waits until nothing runs or waits and no block is held; false after a minute.
  bool WaitIdle();
  // Waits until `metric` is at least `value`; false after a minute.
  bool WaitMetric(const std::string& name, double value);

 private:
  TestServerOptions options_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<v1::Inference::Stub> inference_;
  std::unique_ptr<v1::Control::Stub> control_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// The field violations in a status's details.
std::map<std::string, std::string> FieldViolations(const grpc::Status& status);

// What one Generate call gave.
struct Collected {
  grpc::Status status;
  v1::Accepted accepted;
  std::vector<std::string> texts;      // of each output
  std::vector<v1::Finished> finished;  // in order of arrival
  std::vector<int32_t> num_tokens;     // of each output, as the deltas count
  int messages = 0;
  std::multimap<std::string, std::string> trailers;
};
Collected Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request);

v1::GenerateRequest TextRequest(const std::string& text, int32_t max_tokens);

}  // namespace tessera

#endif  // TESSERA_TESTS_UNIT_SERVER_RPC_TEST_SERVER_H_
