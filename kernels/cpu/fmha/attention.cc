#include "kernels/cpu/fmha/attention.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/checks.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear/panels.h"

namespace tessera::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// A sequence's keys are shared out between threads when one task over all of them would be more than this
// fraction of a thread's share of the batch. It decides who computes, never what.
constexpr int64_t kTasksPerThread = 4;

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr size_t Align(size_t bytes) { return CeilDiv(bytes, kWorkspaceAlignment) * kWorkspaceAlignment; }

// A sequence in the plan of one call. A row is a (query token, query head of the group) pair; a row tile is a
// few neighbouring rows of one KV head.
struct SequencePlan {
  int64_t first_task;
  int64_t row_tiles;        // for each KV head
  int64_t splits;           // shared out between tasks; 1 when a task runs over all keys
  int64_t first_partial;    // in rows x splits
  int64_t first_merge_row;  // among the rows that need merging
};

// Result of some rows over some keys. out is the unnormalised sum of exp(score - max) * value.
struct RowState {
  float max[kMaxAttentionRows];
  float sum[kMaxAttentionRows];
  float* out;  // [rows, value_dim]

  void Clear(int rows, int64_t value_dim) {
    std::fill(max, max + rows, kMinusInfinity);
    std::fill(sum, sum + rows, 0.0f);
    std::fill(out, out + rows * value_dim, 0.0f);
  }
};

struct Range {
  int64_t begin;
  int64_t end;
};

class AttentionCall {
 public:
  AttentionCall(const AttentionArgs& args, std::byte* workspace, ThreadPool& pool)
      : args_(args),
        table_(Kernels()),
        pool_(pool),
        group_(args.q_heads / args.cache.kv_heads),
        dim_(args.cache.head_dim),
        k_dim_(args.cache.k_dim()),
        value_dim_(args.cache.value_dim),
        plans_(reinterpret_cast<SequencePlan*>(workspace)),
        partials_(
            reinterpret_cast<float*>(workspace + Align((args.num_sequences + 1) * sizeof(SequencePlan)))) {}

  void Run() {
    Plan();
    const SequencePlan& end = plans_[args_.num_sequences];
    pool_.ParallelFor(end.first_task, [&](int64_t task) { RunTask(task); });
    pool_.ParallelFor(end.first_merge_row, [&](int64_t row) { MergeRow(row); });
  }

 private:
  int64_t QueryLen(int64_t s) const { return args_.q_start[s + 1] - args_.q_start[s]; }
  int64_t Rows(int64_t s) const { return QueryLen(s) * group_; }  // of one KV head

  void Plan() {
    int64_t work = 0;
    for (int64_t s = 0; s < args_.num_sequences; ++s) {
      work += CeilDiv(Rows(s), table_.max_attention_rows) * args_.cache.kv_heads * args_.kv_len[s];
    }
    const int64_t largest_task =
        pool_.num_threads() == 1 ? work : work / (kTasksPerThread * pool_.num_threads());
    SequencePlan next = {};
    for (int64_t s = 0; s < args_.num_sequences; ++s) {
      SequencePlan& plan = plans_[s];
      plan = next;
      plan.row_tiles = CeilDiv(Rows(s), table_.max_attention_rows);
      plan.splits = args_.kv_len[s] > largest_task ? CeilDiv(args_.kv_len[s], kAttentionSplit) : 1;
      next.first_task += plan.row_tiles * args_.cache.kv_heads * plan.splits;
      if (plan.splits > 1) {
        next.first_partial += Rows(s) * args_.cache.kv_heads * plan.splits;
        next.first_merge_row += Rows(s) * args_.cache.kv_heads;
      }
    }
    plans_[args_.num_sequences] = next;
  }

  // The last sequence whose field is at most value; sequences without tasks share their successor's.
  int64_t FindSequence(int64_t SequencePlan::*field, int64_t value) const {
    const SequencePlan* end = plans_ + args_.num_sequences;
    const SequencePlan* begin = plans_;
    const SequencePlan* after = std::upper_bound(
        begin, end, value, [field](int64_t v, const SequencePlan& plan) { return v < plan.*field; });
    return after - begin - 1;
  }

  // Keys that a row of sequence s sees.
  Range VisibleKeys(int64_t s, int64_t row) const {
    const int64_t position = args_.kv_len[s] - QueryLen(s) + row / group_;
    return {args_.window > 0 ? std::max<int64_t>(0, position - args_.window + 1) : 0, position + 1};
  }

  float* Partial(const SequencePlan& plan, int64_t merge_row, int64_t split) const {
    return partials_ + (plan.first_partial + merge_row * plan.splits + split) * (value_dim_ + 2);
  }

  void RunTask(int64_t task) {
    const int64_t s = FindSequence(&SequencePlan::first_task, task);
    const SequencePlan& plan = plans_[s];
    task -= plan.first_task;
    const int64_t split = task % plan.splits;
    task /= plan.splits;
    // Late rows of a prefill see the most keys: they go first.
    const int64_t row_tile = plan.row_tiles - 1 - task % plan.row_tiles;
    const int64_t kv_head = task / plan.row_tiles;

    const PanelCut cut(Rows(s), table_.max_attention_rows);
    const int64_t first_row = cut.begin(row_tile);
    const int rows = cut.size(row_tile);
    alignas(64) std::byte q_panel[kMaxAttentionRows * kMaxHeadDim * sizeof(float)];
    alignas(64) float q_shared[kMaxAttentionRows * kMaxHeadDim];
    PackQueries(s, kv_head, first_row, rows, q_panel, q_shared);
    Range keys[kMaxAttentionRows];
    for (int r = 0; r < rows; ++r) keys[r] = VisibleKeys(s, first_row + r);

    alignas(64) float split_out[kMaxAttentionRows * kMaxHeadDim];
    RowState state;
    state.out = split_out;
    if (plan.splits > 1) {
      RunSplit(s, kv_head, q_panel, q_shared, rows, keys, split, split + 1, &state);
      for (int r = 0; r < rows; ++r) {
        float* partial = Partial(plan, kv_head * Rows(s) + first_row + r, split);
        partial[0] = state.max[r];
        partial[1] = state.sum[r];
        std::copy(state.out + r * value_dim_, state.out + (r + 1) * value_dim_, partial + 2);
      }
      return;
    }
    alignas(64) float total_out[kMaxAttentionRows * kMaxHeadDim];
    RowState total;
    total.out = total_out;
    total.Clear(rows, value_dim_);
    const int64_t first_split = keys[0].begin / kAttentionSplit;
    const int64_t end_split = CeilDiv(keys[rows - 1].end, kAttentionSplit);
    for (int64_t i = first_split; i < end_split; ++i) {
      RunSplit(s, kv_head, q_panel, q_shared, rows, keys, i, end_split, &state);
      for (int r = 0; r < rows; ++r) {
        if (!Sees(keys[r], i)) continue;
        Merge(state.max[r], state.sum[r], state.out + r * value_dim_, &total.max[r], &total.sum[r],
              total.out + r * value_dim_);
      }
    }
    for (int r = 0; r < rows; ++r) {
      Finish(s, kv_head, first_row + r, total.max[r], total.sum[r], total.out + r * value_dim_);
    }
  }

  static bool Sees(const Range& keys, int64_t split) {
    return keys.begin < (split + 1) * kAttentionSplit && keys.end > split * kAttentionSplit;
  }

  // The elements that meet a key's values go to `shared`, the others to `panel`.
  void PackQueries(int64_t s, int64_t kv_head, int64_t first_row, int rows, std::byte* panel,
                   float* shared) const {
    const int64_t shared_dim = dim_ - k_dim_;
    const bool dot = table_.query_value_bytes() == static_cast<int>(sizeof(Bf16));
    Bf16* pairs = reinterpret_cast<Bf16*>(panel);
    float* floats = reinterpret_cast<float*>(panel);
    for (int r = 0; r < rows; ++r) {
      const int64_t token = args_.q_start[s] + (first_row + r) / group_;
      const int64_t head = kv_head * group_ + (first_row + r) % group_;
      const float* q = args_.q + token * args_.q_stride + head * dim_;
      for (int64_t d = 0; d < shared_dim; ++d) shared[r * shared_dim + d] = ToFloat(ToBf16(q[d]));
      q += shared_dim;
      for (int64_t d = 0; d < k_dim_; ++d) {
        const int64_t at = (d / 2 * rows + r) * 2 + d % 2;
        const Bf16 value = ToBf16(q[d]);
        if (dot) {
          pairs[at] = value;
        } else {
          floats[at] = ToFloat(value);
        }
      }
    }
  }

  // Rows ascend in position, so the first row's begin and the last row's end bound the keys of all. The task goes on to
  // end_split: so far keys and values are fetched ahead.
  void RunSplit(int64_t s, int64_t kv_head, const std::byte* q_panel, const float* q_shared, int rows,
                const Range* keys, int64_t split, int64_t end_split, RowState* state) const {
    state->Clear(rows, value_dim_);
    const int64_t begin = std::max(split * kAttentionSplit, keys[0].begin / kAttentionTile * kAttentionTile);
    const int64_t end = std::min((split + 1) * kAttentionSplit, keys[rows - 1].end);
    const int64_t fetch_end = std::min(end_split * kAttentionSplit, keys[rows - 1].end);
    int32_t row_begin[kMaxAttentionRows];
    int32_t row_end[kMaxAttentionRows];
    AttentionTileArgs tile;
    tile.k_dim = k_dim_;
    tile.value_dim = value_dim_;
    tile.rows = rows;
    tile.q_panel = q_panel;
    tile.q_shared = k_dim_ < dim_ ? q_shared : nullptr;
    tile.begin = row_begin;
    tile.end = row_end;
    tile.scale = args_.softmax_scale;
    tile.max = state->max;
    tile.sum = state->sum;
    tile.out = state->out;
    for (int64_t first = begin; first < end; first += kAttentionTile) {
      for (int r = 0; r < rows; ++r) {
        row_begin[r] = static_cast<int32_t>(std::clamp<int64_t>(keys[r].begin - first, 0, kAttentionTile));
        row_end[r] = static_cast<int32_t>(std::clamp<int64_t>(keys[r].end - first, 0, kAttentionTile));
      }
      for (int64_t i = 0; i < kAttentionTile / kKvTokenRun; ++i) {
        // Runs past the last key are not read; they repeat a valid address.
        const int64_t key = first + i * kKvTokenRun < end ? first + i * kKvTokenRun : first;
        const int64_t run = RunSlot(s, kv_head, key);
        tile.k_runs[i] = args_.cache.k + run * k_dim_;
        tile.v_runs[i] = args_.cache.v + run * value_dim_;
        const int64_t next_key = key + kAttentionTile;
        const int64_t next_run = next_key < fetch_end ? RunSlot(s, kv_head, next_key) : run;
        tile.next_k_runs[i] = args_.cache.k + next_run * k_dim_;
        tile.next_v_runs[i] = args_.cache.v + next_run * value_dim_;
      }
      table_.attention_tile(tile);
    }
  }

  // Where a run of keys begins, in slots of its KV head's order.
  int64_t RunSlot(int64_t s, int64_t kv_head, int64_t key) const {
    const KvCache& cache = args_.cache;
    const int64_t block = args_.block_table[s * args_.block_table_stride + key / cache.block_size];
    return (block * cache.kv_heads + kv_head) * cache.block_size + key % cache.block_size;
  }

  // Adds one split's result to the total of the splits before it.
  void Merge(float max, float sum, const float* out, float* total_max, float* total_sum,
             float* total_out) const {
    const float new_max = std::max(*total_max, max);
    float scale[2] = {*total_max, max};
    table_.exp_sum(scale, new_max, 2, scale);
    *total_sum = *total_sum * scale[0] + sum * scale[1];
    *total_max = new_max;
    table_.merge(scale[0], total_out, scale[1], out, value_dim_);
  }

  // Divides by the softmax's sum and stores. A sink joins the sum here.
  void Finish(int64_t s, int64_t kv_head, int64_t row, float max, float sum, float* out) const {
    const int64_t token = args_.q_start[s] + row / group_;
    const int64_t head = kv_head * group_ + row % group_;
    float factor = 1.0f;
    if (args_.sinks != nullptr) {
      const float new_max = std::max(max, args_.sinks[head]);
      float scale[2] = {max, args_.sinks[head]};
      table_.exp_sum(scale, new_max, 2, scale);
      sum = sum * scale[0] + scale[1];
      factor = scale[0];
    }
    factor /= sum;
    for (int64_t d = 0; d < value_dim_; ++d) out[d] *= factor;
    if (args_.out != nullptr) {
      table_.to_bf16(out, value_dim_, args_.out + token * args_.out_stride + head * value_dim_);
    }
    if (args_.out_float != nullptr) {
      std::copy(out, out + value_dim_, args_.out_float + token * args_.out_float_stride + head * value_dim_);
    }
  }

  void MergeRow(int64_t merge_row) {
    const int64_t s = FindSequence(&SequencePlan::first_merge_row, merge_row);
    const SequencePlan& plan = plans_[s];
    merge_row -= plan.first_merge_row;
    const int64_t row = merge_row % Rows(s);
    const Range keys = VisibleKeys(s, row);
    float total_max = kMinusInfinity;
    float total_sum = 0;
    alignas(64) float total_out[kMaxHeadDim];
    std::fill(total_out, total_out + value_dim_, 0.0f);
    for (int64_t split = 0; split < plan.splits; ++split) {
      if (!Sees(keys, split)) continue;
      const float* partial = Partial(plan, merge_row, split);
      Merge(partial[0], partial[1], partial + 2, &total_max, &total_sum, total_out);
    }
    Finish(s, merge_row / Rows(s), row, total_max, total_sum, total_out);
  }

  const AttentionArgs& args_;
  const KernelTable& table_;
  ThreadPool& pool_;
  const int64_t group_;
  const int64_t dim_;        // of queries and keys
  const int64_t k_dim_;      // of keys, as far as they are not their values
  const int64_t value_dim_;  // of values and results
  SequencePlan* plans_;
  float* partials_;
};

absl::Status CheckSequences(const AttentionArgs& args, int64_t* tokens, int64_t* max_kv_len) {
  TESSERA_KERNEL_CHECK(args.num_sequences >= 0, "Attention: ", args.num_sequences, " sequences");
  *tokens = 0;
  *max_kv_len = 0;
  if (args.num_sequences == 0) return absl::OkStatus();
  TESSERA_KERNEL_CHECK(args.q_start != nullptr && args.kv_len != nullptr && args.block_table != nullptr,
                       "Attention: null q_start, kv_len or block_table");
  TESSERA_KERNEL_CHECK(args.q_start[0] == 0, "Attention: q_start begins with ", args.q_start[0], ", not 0");
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t q_len = static_cast<int64_t>(args.q_start[s + 1]) - args.q_start[s];
    TESSERA_KERNEL_CHECK(q_len >= 0 && args.kv_len[s] >= q_len, "Attention: sequence ", s, " has ", q_len,
                         " query tokens and ", args.kv_len[s], " keys");
    const int64_t blocks = CeilDiv(args.kv_len[s], args.cache.block_size);
    TESSERA_KERNEL_CHECK(s == 0 || blocks <= args.block_table_stride, "Attention: sequence ", s, " needs ",
                         blocks, " blocks but rows of the block table are ", args.block_table_stride,
                         " apart");
    if (q_len == 0) continue;
    const int32_t* table = args.block_table + s * args.block_table_stride;
    for (int64_t b = 0; b < blocks; ++b) {
      TESSERA_KERNEL_CHECK(table[b] >= 0 && table[b] < args.cache.num_blocks, "Attention: block ", table[b],
                           " at place ", b, " of sequence ", s, " is outside a cache of ",
                           args.cache.num_blocks);
    }
    *max_kv_len = std::max<int64_t>(*max_kv_len, args.kv_len[s]);
  }
  *tokens = args.q_start[args.num_sequences];
  return absl::OkStatus();
}

}  // namespace

size_t AttentionWorkspaceBytes(int64_t tokens, int64_t num_sequences, int64_t max_kv_len, int64_t q_heads,
                               int64_t value_dim, int num_threads) {
  const size_t plans = Align((num_sequences + 1) * sizeof(SequencePlan));
  if (num_threads <= 1) return plans;
  // A shared-out sequence has tasks of more than 1/(kTasksPerThread * threads) of the whole work each, so
  // there are fewer such tasks than that, each with at most kMaxAttentionRows rows.
  const int64_t rows = std::min(tokens * q_heads, kTasksPerThread * num_threads * kMaxAttentionRows);
  return plans + Align(rows * CeilDiv(max_kv_len, kAttentionSplit) * (value_dim + 2) * sizeof(float));
}

absl::Status Attention(const AttentionArgs& args, Workspace workspace, ThreadPool& pool) {
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckKvCache(args.cache));
  TESSERA_KERNEL_CHECK(args.q_heads > 0 && args.q_heads % args.cache.kv_heads == 0,
                       "Attention: ", args.q_heads, " query heads are not a multiple of ",
                       args.cache.kv_heads, " KV heads");
  TESSERA_KERNEL_CHECK(args.window >= 0, "Attention: window ", args.window);
  int64_t tokens = 0;
  int64_t max_kv_len = 0;
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckSequences(args, &tokens, &max_kv_len));
  TESSERA_KERNEL_RETURN_IF_ERROR(
      CheckMatrix("Attention", "q", args.q, args.q_stride, tokens, args.q_heads * args.cache.head_dim));
  const int64_t row = args.q_heads * args.cache.value_dim;
  TESSERA_KERNEL_CHECK(tokens == 0 || args.out != nullptr || args.out_float != nullptr,
                       "Attention: no output is given");
  if (args.out != nullptr) {
    TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("Attention", "out", args.out, args.out_stride, tokens, row));
  }
  if (args.out_float != nullptr) {
    TESSERA_KERNEL_RETURN_IF_ERROR(
        CheckMatrix("Attention", "out_float", args.out_float, args.out_float_stride, tokens, row));
  }
  const size_t needed = AttentionWorkspaceBytes(tokens, args.num_sequences, max_kv_len, args.q_heads,
                                                args.cache.value_dim, pool.num_threads());
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckWorkspace("Attention", workspace, needed));
  if (tokens == 0) return absl::OkStatus();
  AttentionCall(args, workspace.data, pool).Run();
  return absl::OkStatus();
}

}  // namespace tessera::cpu
