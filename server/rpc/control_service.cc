#include "server/rpc/control_service.h"

#include <set>
#include <string>

#include "server/logging/logging.h"
#include "server/rpc/status.h"
#include "server/rpc/validation.h"

namespace tessera {
namespace {

grpc::ServerUnaryReactor* FinishWith(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(FinishStatus(status, context));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* ControlService::GetModelInfo(grpc::CallbackServerContext* context,
                                                       const v1::GetModelInfoRequest* request,
                                                       v1::ModelInfo* response) {
  absl::Status status = rpc_->Authenticate(*context);
  return FinishWith(context, status.ok() ? ModelInfo(*request, response) : status);
}

grpc::ServerUnaryReactor* ControlService::GetServerInfo(grpc::CallbackServerContext* context,
                                                        const v1::GetServerInfoRequest*,
                                                        v1::ServerInfo* response) {
  if (absl::Status status = rpc_->Authenticate(*context); !status.ok()) return FinishWith(context, status);
  response->set_version(rpc_->options().version);
  response->set_max_request_bytes(rpc_->options().max_request_bytes);
  response->set_state(ServerStateName(rpc_->state()));
  const absl::Duration uptime = absl::Now() - rpc_->start_time();
  response->mutable_uptime()->set_seconds(absl::ToInt64Seconds(uptime));
  response->mutable_uptime()->set_nanos(static_cast<int32_t>(
      absl::ToInt64Nanoseconds(absl::Trunc(uptime, absl::Nanoseconds(1)) % absl::Seconds(1))));
  if (const Serving* serving = rpc_->serving()) {
    const BackendInfo& backend = serving->engine->backend_info();
    const EngineConfig& config = serving->engine->config();
    response->set_device(backend.device);
    response->set_device_description(backend.device_description);
    response->set_max_running_sequences(config.scheduler.max_running);
    response->set_max_batched_tokens(config.scheduler.max_batched_tokens);
    response->set_max_queued_sequences(config.max_queued_sequences);
    response->set_kv_block_size(config.scheduler.block_size);
    response->set_kv_blocks_total(config.scheduler.num_blocks);
    response->set_prefix_cache_enabled(config.scheduler.prefix_cache);
  }
  return FinishWith(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* ControlService::GetLoad(grpc::CallbackServerContext* context,
                                                  const v1::GetLoadRequest*, v1::Load* response) {
  absl::Status status = rpc_->Authenticate(*context);
  return FinishWith(context, status.ok() ? Load(response) : status);
}

grpc::ServerUnaryReactor* ControlService::Abort(grpc::CallbackServerContext* context,
                                                const v1::AbortRequest* request,
                                                v1::AbortResponse* response) {
  absl::Status status = rpc_->Authenticate(*context);
  return FinishWith(context, status.ok() ? Abort(*request, response) : status);
}

absl::Status ControlService::ModelInfo(const v1::GetModelInfoRequest& request,
                                       v1::ModelInfo* response) const {
  absl::StatusOr<const Serving*> serving = rpc_->Loaded();
  if (!serving.ok()) return serving.status();
  if (absl::Status status = CheckModelName(request.model(), (*serving)->model); !status.ok()) return status;
  *response = (*serving)->model.info;
  return absl::OkStatus();
}

absl::Status ControlService::Load(v1::Load* response) const {
  absl::StatusOr<const Serving*> serving = rpc_->Loaded();
  if (!serving.ok()) return serving.status();
  const EngineLoad load = (*serving)->engine->Load();
  response->set_running(load.scheduler.running);
  response->set_waiting(load.scheduler.waiting);
  response->set_kv_blocks_used(load.scheduler.blocks_used);
  response->set_kv_blocks_cached(load.scheduler.blocks_cached);
  response->set_kv_blocks_total(load.scheduler.blocks_total);
  response->set_kv_usage(load.scheduler.blocks_total > 0
                             ? static_cast<double>(load.scheduler.blocks_used) / load.scheduler.blocks_total
                             : 0.0);
  response->set_generation_tokens_per_second(load.generation_tokens_per_second);
  response->set_prompt_tokens_per_second(load.prompt_tokens_per_second);
  response->set_prefix_cache_hit_rate(load.prefix_cache_hit_rate);
  return absl::OkStatus();
}

absl::Status ControlService::Abort(const v1::AbortRequest& request, v1::AbortResponse* response) const {
  absl::StatusOr<const Serving*> serving = rpc_->Loaded();
  if (!serving.ok()) return serving.status();
  if (absl::Status status = CheckAbortRequest(request); !status.ok()) return status;
  Engine* engine = (*serving)->engine;
  const absl::Status why = absl::AbortedError("ended by Control.Abort");

  // A request moves from the arriving ones to the engine, never back: looked for in this order, none slips through.
  std::set<std::string> aborted;
  if (request.all()) {
    for (const std::string& id : rpc_->arriving().AbortAll()) aborted.insert(id);
    for (const std::string& id : engine->AbortAll(why)) aborted.insert(id);
  }
  for (const std::string& id : request.request_ids()) {
    const bool arriving = rpc_->arriving().Abort(id);
    if (engine->Abort(id, why) || arriving) {
      aborted.insert(id);
    } else {
      response->add_not_found(id);
    }
  }
  for (const std::string& id : aborted) response->add_aborted(id);
  if (rpc_->options().log_requests) {
    LogInfo("abort", {{"aborted", response->aborted_size()}, {"not_found", response->not_found_size()}});
  }
  return absl::OkStatus();
}

}  // namespace tessera
