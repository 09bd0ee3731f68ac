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
// A device that works beside its host is kept one step ahead of it: while a step is at work the next is planned and
// started, with rows for the tokens that the first is about to draw, and what came of the step before is delivered. Then
// the first is waited for, its tokens are taken, and the samplers, which know them now, draw in the next:
//
//   device  |  step 1  |  step 2  |  step 3  |
//   host       plan 2, start 2, deliver 0, finish 1, take 1, draw 2, inbox, plan 3, start 3, deliver 1, finish 2, ...
//
// A row that was started ahead for a sequence that turns out to have ended is void: nothing looks at what it computes.
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

  // A step from its plan to its commit. Kept for its memory.
  struct Step {
    const StepPlan* plan = nullptr;
    std::vector<BatchRow> rows;
    std::vector<ActiveSequence*> sequences;  // of the rows; null: void
    std::vector<RowResult> results;
    absl::Status status;  // of the parts of it that were run
    StepRecord record;
    absl::Time planned;
    bool follows = false;  // the device had work until it came to this step
  };

  // One round's work on the model. False if there was nothing to do.
  bool Advance();
  // False if there is nothing to run.
  bool PlanStep(Step* step);
  void NotePlan(const StepPlan& plan, StepRecord* record);
  void BuildRows(Step* step);
  void StartStep(Step* step);
  void DrawStep(Step* step);
  // Waits for the step, takes what came of it and commits its plan. `ahead`: the step after it, or null.
  void FinishStep(Step* step, Step* ahead);
  absl::Status WaitFor(Step* step);
  void VoidRows(const Step& finished, Step* ahead);
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
  Step steps_[2];
  Step* at_work_ = nullptr;  // one of them: started, not finished
  // Ended and delivered, while a step at work has rows of them.
  std::vector<std::unique_ptr<ActiveRequest>> retired_;
  absl::Time last_step_end_ = absl::InfinitePast();
  absl::Time device_idle_since_ =
      absl::InfiniteFuture();  // the last step's end, unless there was nothing to do then

  // Kept from step to step for their memory.
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
