#ifndef TESSERA_TESTS_UNIT_CLIENT_FAKE_SERVER_H_
#define TESSERA_TESTS_UNIT_CLIENT_FAKE_SERVER_H_

#include <atomic>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/grpcpp.h"
#include "tessera/v1/control.grpc.pb.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera::testing {

// What the fake does with one call. Calls take the entries of FakeServer::script in order; when it is empty,
// a call succeeds.
struct Behaviour {
  grpc::Status status = grpc::Status::OK;
  // Deltas of Generate to send before `status`; 0 sends no message at all.
  int deltas = 3;
  // Sent as the trailer grpc-retry-pushback-ms if not empty.
  std::string pushback_ms;
  // After the deltas: wait until the client cancels.
  bool hang = false;
};

// A try that is refused before any message.
inline Behaviour Refuse(grpc::StatusCode code, std::string pushback_ms = "") {
  return {.status = {code, "refused"}, .deltas = 0, .pushback_ms = std::move(pushback_ms)};
}

inline grpc::Status BadRequest(const std::vector<std::pair<std::string, std::string>>& violations) {
  google::rpc::BadRequest bad_request;
  for (const auto& [field, description] : violations) {
    auto* violation = bad_request.add_field_violations();
    violation->set_field(field);
    violation->set_description(description);
  }
  google::rpc::Status status;
  status.set_code(grpc::StatusCode::INVALID_ARGUMENT);
  status.add_details()->PackFrom(bad_request);
  return {grpc::StatusCode::INVALID_ARGUMENT, "the request is invalid", status.SerializeAsString()};
}

// A Tessera server without an engine: answers by script and remembers what it saw.
class FakeServer final : public v1::Inference::Service, public v1::Control::Service {
 public:
  explicit FakeServer(
      std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials(),
      int port = 0) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), std::move(credentials), &port_);
    builder.RegisterService(static_cast<v1::Inference::Service*>(this));
    builder.RegisterService(static_cast<v1::Control::Service*>(this));
    builder.SetMaxReceiveMessageSize(-1);
    server_ = builder.BuildAndStart();
  }
  ~FakeServer() override { server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2)); }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }
  void SetServing(bool serving) { server_->GetHealthCheckService()->SetServingStatus(serving); }

  void Script(std::deque<Behaviour> script) {
    std::lock_guard<std::mutex> lock(mutex_);
    script_ = std::move(script);
  }
  int calls() const { return calls_.load(); }
  int cancelled() const { return cancelled_.load(); }
  std::string authorization() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return authorization_;
  }
  v1::GenerateRequest last_request() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return last_request_;
  }

  grpc::Status Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* writer) override {
    const Behaviour behaviour = Begin(context, request);
    if (behaviour.deltas > 0) {
      v1::GenerateResponse event;
      event.mutable_accepted()->set_request_id("fake-1");
      event.mutable_accepted()->set_prompt_tokens(4);
      writer->Write(event);
      for (int i = 0; i < behaviour.deltas; ++i) {
        event.mutable_delta()->set_text("word" + std::to_string(i) + " ");
        event.mutable_delta()->set_num_tokens(1);
        writer->Write(event);
      }
    }
    if (behaviour.hang) {
      Hang(context);
      return grpc::Status::CANCELLED;
    }
    if (behaviour.status.ok()) {
      v1::GenerateResponse event;
      event.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
      event.mutable_finished()->mutable_usage()->set_completion_tokens(behaviour.deltas);
      writer->Write(event);
    }
    return behaviour.status;
  }

  grpc::Status GenerateOnce(grpc::ServerContext* context, const v1::GenerateRequest* request,
                            v1::GenerateOnceResponse* response) override {
    const Behaviour behaviour = Begin(context, request);
    if (behaviour.hang) Hang(context);
    response->add_outputs()->set_text("whole");
    return behaviour.status;
  }

  grpc::Status Embed(grpc::ServerContext* context, const v1::EmbedRequest* request,
                     v1::EmbedResponse* response) override {
    const Behaviour behaviour = Begin(context, nullptr);
    for (const v1::Prompt& input : request->inputs()) {
      v1::Embedding* embedding = response->add_embeddings();
      embedding->set_num_tokens(static_cast<int>(input.text().size()));
      embedding->add_values(input.text().empty() ? 0.0f : static_cast<float>(input.text()[0]));
      embedding->add_values(1.0f);
    }
    return behaviour.status;
  }

  grpc::Status Tokenize(grpc::ServerContext* context, const v1::TokenizeRequest* request,
                        v1::TokenizeResponse* response) override {
    const Behaviour behaviour = Begin(context, nullptr);
    for (const char c : request->prompt().text()) response->add_token_ids(static_cast<unsigned char>(c));
    return behaviour.status;
  }

  grpc::Status Detokenize(grpc::ServerContext* context, const v1::DetokenizeRequest* request,
                          v1::DetokenizeResponse* response) override {
    const Behaviour behaviour = Begin(context, nullptr);
    for (const int id : request->token_ids()) response->mutable_text()->push_back(static_cast<char>(id));
    return behaviour.status;
  }

  grpc::Status GetModelInfo(grpc::ServerContext* context, const v1::GetModelInfoRequest*,
                            v1::ModelInfo* response) override {
    response->set_name("fake-model");
    response->set_vocab_size(256);
    return Begin(context, nullptr).status;
  }

  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest*,
                             v1::ServerInfo* response) override {
    response->set_version("9.9.9");
    response->set_state("serving");
    return Begin(context, nullptr).status;
  }

  grpc::Status GetLoad(grpc::ServerContext* context, const v1::GetLoadRequest*, v1::Load* response) override {
    response->set_running(2);
    return Begin(context, nullptr).status;
  }

  grpc::Status Abort(grpc::ServerContext* context, const v1::AbortRequest* request,
                     v1::AbortResponse* response) override {
    for (const std::string& id : request->request_ids()) {
      (id == "known" ? response->mutable_aborted() : response->mutable_not_found())->Add()->assign(id);
    }
    return Begin(context, nullptr).status;
  }

 private:
  Behaviour Begin(grpc::ServerContext* context, const v1::GenerateRequest* request) {
    ++calls_;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = context->client_metadata().find("authorization");
    authorization_ = found == context->client_metadata().end()
                         ? ""
                         : std::string(found->second.data(), found->second.size());
    if (request != nullptr) last_request_ = *request;
    Behaviour behaviour;
    if (!script_.empty()) {
      behaviour = script_.front();
      script_.pop_front();
    }
    if (!behaviour.pushback_ms.empty()) {
      context->AddTrailingMetadata("grpc-retry-pushback-ms", behaviour.pushback_ms);
    }
    return behaviour;
  }

  void Hang(grpc::ServerContext* context) {
    while (!context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ++cancelled_;
  }

  mutable std::mutex mutex_;
  std::deque<Behaviour> script_;
  std::string authorization_;
  v1::GenerateRequest last_request_;
  std::atomic<int> calls_{0};
  std::atomic<int> cancelled_{0};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace tessera::testing

#endif  // TESSERA_TESTS_UNIT_CLIENT_FAKE_SERVER_H_
