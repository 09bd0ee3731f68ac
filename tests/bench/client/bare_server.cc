// The least that a gRPC server can do for a Generate call: a reactor that writes one prepared message after the other. Its
// rate is the ceiling for tessera-server's, measured with the same client (tests/bench/cpu/rpc_throughput.py).
//
//   bare_server PORT-FILE
//
// Listens on a free port of the loopback and writes its number to PORT-FILE. Ends with its standard input.
#include <cstdio>
#include <fstream>
#include <iostream>

#include "grpcpp/grpcpp.h"
#include "tessera/v1/control.grpc.pb.h"
#include "tessera/v1/inference.grpc.pb.h"

namespace tessera::bench {
namespace {

constexpr int kVocabSize = 32768;

class Messages final : public grpc::ServerWriteReactor<v1::GenerateResponse> {
 public:
  explicit Messages(int tokens) : left_(tokens) {
    message_.mutable_accepted()->set_request_id("bare");
    StartWrite(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok || left_ < 0) {
      Finish(ok ? grpc::Status::OK : grpc::Status::CANCELLED);
      return;
    }
    if (left_-- > 0) {
      message_.mutable_delta()->set_text(" word");
      message_.mutable_delta()->set_num_tokens(1);
    } else {
      message_.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
    }
    StartWrite(&message_);
  }
  void OnDone() override { delete this; }

 private:
  int left_;
  v1::GenerateResponse message_;
};

class Inference final : public v1::Inference::CallbackService {
  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(grpc::CallbackServerContext*,
                                                           const v1::GenerateRequest* request) override {
    return new Messages(request->stopping().max_tokens());
  }
};

class Control final : public v1::Control::CallbackService {
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context, const v1::GetModelInfoRequest*,
                                         v1::ModelInfo* response) override {
    response->set_vocab_size(kVocabSize);
    response->set_max_context(1 << 20);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

int Run(const std::string& port_file) {
  Inference inference;
  Control control;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&inference);
  builder.RegisterService(&control);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::ofstream(port_file + ".new") << port << "\n";
  std::rename((port_file + ".new").c_str(), port_file.c_str());
  for (std::string line; std::getline(std::cin, line);) {
  }
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "bare_server PORT-FILE\n";
    return 2;
  }
  return tessera::bench::Run(argv[1]);
}
