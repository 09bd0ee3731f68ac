#ifndef TESSERA_SERVER_ENGINE_ENGINE_LOOP_H_
#define TESSERA_SERVER_ENGINE_ENGINE_LOOP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/backend/backend.h"
#include "server/engine/active_request.h"
#include "server/engine/heartbeat.h"
#include "server/engine/inbox.h"
#include "server/engine/load_board.h"
#include "server/metrics/metrics.h"
#include "server/scheduler/scheduler.h"

namespace tessera {

struct EngineConfig;

// The engine thread's program: owner of everything that runs. A round is
//
//   inbox -> plan -> run -> take tokens -> commit -> deliver
//
// On a device that works beside the host, a step's results are delivered while the next one runs.
//
// A request is accounted for (blocks, load, metrics, its id) before its last event goes out, so whoever has seen the
// end sees a server without it.
class EngineLoop {
 public:
  struct Seams {
    Backend* backend;
    Metrics* metrics;
    Inbox* inbox;
    Heartbeat* heartbeat;
    LoadBoard* board;
    std::function<absl::Time()> clock;
  };
  EngineLoop(const EngineConfig& config, Seams seams);

  // Returns after Inbox::Stop, with every request ended.
  void Run();

  // Thread-safe.
  absl::Status CheckFits(int64_t prompt_tokens, int64_t max_tokens) const {
    return scheduler_.CheckFits(prompt_tokens, max_tokens);
  }

 private:
  struct Outgoing {
    ActiveRequest* request;
    RequestEvent event;
    absl::Time at;
  };

  void TakeUp(Inbox::Contents* contents);
  void Admit(std::unique_ptr<ActiveRequest> request);
  void Sleep();

  // One round's work on the model. False if there was nothing to do.
  bool Step();
  void NotePlan(const StepPlan& plan, StepRecord* record);
  void BuildRows(const StepPlan& plan, StepRecord* record);
  absl::Status RunBackend(absl::Time planned, StepRecord* record);
  RowOutcome TakeRow(const PlannedRow& row, ActiveSequence* sequence, RowResult* result, StepRecord* record);
  bool TakeToken(ActiveSequence* sequence, SampledToken sampled, StepRecord* record);
  bool TakeEmbedding(const PlannedRow& row, ActiveSequence* sequence, bool* computed);
  // The device failed: ends every request and refuses more.
  void Fail(const absl::Status& status);

  // Ends one output or input. Its sequence is out of the scheduler, or will be with the next Commit.
  void EndSequence(ActiveSequence* sequence, FinishReason reason, absl::Status error,
                   std::vector<float> embedding = {});
  // Ends all of a request's sequences for an outside reason; what they generated is kept.
  void EndRequest(ActiveRequest* request, FinishReason reason, const absl::Status& error);
  void EndAllRequests(FinishReason reason, const absl::Status& error);
  void FlushText(ActiveSequence* sequence);
  void LeaveQueue(ActiveSequence* sequence);

  // Tells inbox and board how much waits and runs.
  void PublishLoad();
  // Sends what gathered, and counts the last step.
  void Deliver();
  void PushDelta(Outgoing* outgoing);

  const EngineConfig& config_;
  const Seams seams_;
  Scheduler scheduler_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<ActiveRequest>> requests_;  // by serial
  absl::flat_hash_map<SequenceId, ActiveSequence*> sequences_;              // those not ended
  absl::Status failure_;
  absl::Time now_;                         // of the round: when its tokens are there
  std::optional<StepRecord> undelivered_;  // the last step, until its results are delivered
  absl::Time device_idle_since_ =
      absl::InfiniteFuture();  // the last step's end, unless there was nothing to do then

  // Kept from step to step for their memory.
  std::vector<BatchRow> rows_;
  std::vector<ActiveSequence*> row_sequences_;
  std::vector<RowResult> results_;
  std::vector<RowOutcome> outcomes_;
  std::vector<double> inter_token_seconds_;
  std::vector<Outgoing> outgoing_;     // deltas, and ends of requests that go on
  std::vector<Outgoing> last_events_;  // ends of requests
  std::vector<uint64_t> slow_readers_;
  int32_t left_queue_sequences_ = 0;
  int64_t left_queue_tokens_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_SERVER_ENGINE_ENGINE_LOOP_H_
