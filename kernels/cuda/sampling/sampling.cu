#include "kernels/cuda/sampling/sampling.h"

#include <type_traits>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampling/draw.cuh"
#include "kernels/cuda/sampling/select.cuh"

namespace tessera::cuda {
namespace {

constexpr int32_t kThreads = 256;
static_assert(kMostSampledTopK <= kSelectRoom / 2 && kMostSampledTopK <= kLogitBlock / 2);
static_assert(kSampledTopPTokens <= kMostSampledTopK && kMostTopLogprobs <= kMostSampledTopK);

// What the kernels share.
struct Work {
  SampleParams p;
  int32_t num_groups, num_blocks;  // of a row
  uint64_t* raw_groups;            // [count][num_groups] best places before the edits
  uint64_t* edited_groups;         // after them, of jobs that have any
  double* raw_sums;                // [count][num_blocks] weights at temperature 1, before the edits
  double* draw_sums;               // of what is drawn from
  float* saved;                    // [num_edits] logits before the edits

  __device__ const uint64_t* RawGroups(int32_t job) const { return raw_groups + int64_t{job} * num_groups; }
  __device__ const uint64_t* DrawGroups(int32_t job) const {
    return (p.jobs[job].num_edits > 0 ? edited_groups : raw_groups) + int64_t{job} * num_groups;
  }
  __device__ float* Row(int32_t job) const { return p.logits + int64_t{p.jobs[job].row} * p.vocab; }
};

Work MakeWork(const SampleParams& p, size_t* bytes) {
  Work w = {};
  w.p = p;
  w.num_groups = (p.vocab + kPlaceGroup - 1) / kPlaceGroup;
  w.num_blocks = (p.vocab + kLogitBlock - 1) / kLogitBlock;
  uint8_t* base = static_cast<uint8_t*>(p.workspace);
  size_t used = 0;
  const auto take = [&](size_t count, auto** out) {
    *out = reinterpret_cast<std::remove_pointer_t<decltype(out)>>(base + used);
    used += (count * sizeof(**out) + 255) / 256 * 256;
  };
  take(size_t(p.count) * w.num_groups, &w.raw_groups);
  take(size_t(p.count) * w.num_groups, &w.edited_groups);
  take(size_t(p.count) * w.num_blocks, &w.raw_sums);
  take(size_t(p.count) * w.num_blocks, &w.draw_sums);
  take(p.num_edits, &w.saved);
  *bytes = used;
  return w;
}

__device__ __forceinline__ bool IsDistribution(int32_t key) {
  return key < kInfinityOrderKey && key > -kInfinityOrderKey;
}

// Draws whose weights are summed over the whole row.
__device__ __forceinline__ bool WantsSums(const SampleJob& job, int32_t vocab) {
  return job.token < 0 && job.temperature != 0.0f && !LimitsTopK(job, vocab);
}

// The best place of each group: one warp a group. With `edited`, of the jobs that have edits.
__global__ void __launch_bounds__(kThreads) BestKernel(const __grid_constant__ Work w, bool edited) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int32_t job = blockIdx.y;
  if (edited && w.p.jobs[job].num_edits == 0) return;
  const int32_t group = blockIdx.x * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (group >= w.num_groups) return;
  const float* logits = w.Row(job);
  uint64_t best = 0;
#pragma unroll
  for (int32_t i = 0; i < kPlaceGroup / 32; ++i) {
    const int32_t index = group * kPlaceGroup + i * 32 + lane;
    if (index < w.p.vocab) best = max(best, PlaceOf(logits[index], index));
  }
  best = WarpMaxPlace(best);
  if (lane == 0) (edited ? w.edited_groups : w.raw_groups)[int64_t{job} * w.num_groups + group] = best;
}

// The sum of a block's weights: of the row before its edits for log-probabilities, after them for drawing.
__global__ void __launch_bounds__(kThreads) SumKernel(const __grid_constant__ Work w, bool raw) {
  __shared__ uint64_t warp_best[32];
  __shared__ float weights[kLogitBlock];
  __shared__ double lanes[kLogitLanes];
  GridDependencyLaunch();
  GridDependencyWait();
  const int32_t job_index = blockIdx.y;
  const SampleJob& job = w.p.jobs[job_index];
  if (raw ? job.num_logprobs < 0 : !WantsSums(job, w.p.vocab)) return;
  const uint64_t best =
      BestPlace(raw ? w.RawGroups(job_index) : w.DrawGroups(job_index), w.num_groups, warp_best);
  if (!IsDistribution(PlaceKey(best))) return;
  const float* logits = w.Row(job_index);
  const float largest = logits[PlaceIndex(best)];
  const float temperature = raw ? 1.0f : job.temperature;
  // top_p is a share of all tokens' weights, whatever min_p leaves out later.
  const float min_weight = raw || job.top_p < 1.0f ? 0.0f : job.min_p;
  const int32_t begin = blockIdx.x * kLogitBlock, count = min(kLogitBlock, w.p.vocab - begin);
  for (int32_t i = threadIdx.x; i < count; i += kThreads) {
    const float weight = LogitWeight(logits[begin + i], largest, temperature);
    weights[i] = weight >= min_weight ? weight : 0.0f;
  }
  __syncthreads();
  if (threadIdx.x < kLogitLanes) {
    double sum = 0.0;
    for (int32_t i = threadIdx.x; i < count; i += kLogitLanes) sum = __dadd_rn(sum, double{weights[i]});
    lanes[threadIdx.x] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  double sum = 0.0;
  for (const double lane : lanes) sum = __dadd_rn(sum, lane);
  (raw ? w.raw_sums : w.draw_sums)[int64_t{job_index} * w.num_blocks + blockIdx.x] = sum;
}

// Applies a row's edits, or takes them back. Edits of one kind are of different tokens; kinds come one after the other.
__global__ void __launch_bounds__(kThreads) EditKernel(const __grid_constant__ Work w, bool restore) {
  GridDependencyLaunch();
  GridDependencyWait();
  const SampleJob& job = w.p.jobs[blockIdx.x];
  if (job.num_edits == 0) return;
  float* logits = w.Row(blockIdx.x);
  const LogitEdit* edits = w.p.edits + job.first_edit;
  float* saved = w.saved + job.first_edit;
  for (int32_t step = 0; step < LogitEdit::kKinds; ++step) {
    const int32_t kind = restore ? LogitEdit::kKinds - 1 - step : step;
    for (int32_t i = threadIdx.x; i < job.num_edits; i += kThreads) {
      const LogitEdit edit = edits[i];
      if (edit.kind != kind || edit.token < 0 || edit.token >= w.p.vocab) continue;
      if (restore) {
        logits[edit.token] = saved[i];
      } else {
        saved[i] = logits[edit.token];
        logits[edit.token] = edit.Apply(saved[i]);
      }
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kSelectThreads, 1) DrawKernel(const __grid_constant__ Work w) {
  __shared__ DrawShared s;
  extern __shared__ double block_sums[];
  GridDependencyLaunch();
  GridDependencyWait();
  const int32_t job_index = blockIdx.x;
  const SampleJob job = w.p.jobs[job_index];
  uint64_t best = BestPlace(w.RawGroups(job_index), w.num_groups, s.select.warp_best);
  int32_t token = job.token;
  if (token < 0 && IsDistribution(PlaceKey(best)) && job.num_edits > 0) {
    best = BestPlace(w.DrawGroups(job_index), w.num_groups, s.select.warp_best);
  }
  const bool draws = token < 0 && IsDistribution(PlaceKey(best));
  if (draws && job.temperature == 0.0f) {
    token = PlaceIndex(best);
  } else if (draws) {
    const float* logits = w.Row(job_index);
    const DrawRow row = {logits,
                         w.p.vocab,
                         logits[PlaceIndex(best)],
                         w.DrawGroups(job_index),
                         w.num_groups,
                         w.draw_sums + int64_t{job_index} * w.num_blocks};
    token = LimitsTopK(job, w.p.vocab) || job.top_p < 1.0f ? DrawFromBest(row, job, block_sums, s)
                                                           : DrawFromAll(row, job, block_sums, s);
  }
  if (threadIdx.x != 0) return;
  SampleResult& result = w.p.results[job_index];
  result.token = token;
  result.key = PlaceKey(best);
  result.needs_host = draws && token < 0;
  result.rank = 0;
  result.largest = result.logit = 0.0f;
  result.sum = 0.0;
}

// Log-probabilities' parts, from the logits before the edits.
__global__ void __launch_bounds__(kSelectThreads, 1) ScoreKernel(const __grid_constant__ Work w) {
  __shared__ SelectShared s;
  __shared__ int32_t before;
  extern __shared__ double block_sums[];
  GridDependencyLaunch();
  GridDependencyWait();
  const int32_t job_index = blockIdx.x;
  const SampleJob& job = w.p.jobs[job_index];
  SampleResult& result = w.p.results[job_index];
  const int32_t token = result.token;
  if (job.num_logprobs < 0 || token < 0) return;
  const uint64_t* groups = w.RawGroups(job_index);
  const uint64_t best = BestPlace(groups, w.num_groups, s.warp_best);
  if (!IsDistribution(PlaceKey(best))) return;  // of a given token
  const float* logits = w.Row(job_index);
  const uint64_t place = PlaceOf(logits[token], token);
  if (threadIdx.x == 0) before = 0;
  LoadSums(w.raw_sums + int64_t{job_index} * w.num_blocks, w.num_blocks, block_sums);
  int32_t mine = 0;
  for (int32_t group = threadIdx.x / 32; group < w.num_groups; group += kSelectThreads / 32) {
    if (groups[group] <= place) continue;
    const int32_t end = min((group + 1) * kPlaceGroup, w.p.vocab);
    for (int32_t i = group * kPlaceGroup + threadIdx.x % 32; i < end; i += 32)
      mine += PlaceOf(logits[i], i) > place;
  }
  if (mine > 0) atomicAdd(&before, mine);  // integers: any order
  __syncthreads();
  if (threadIdx.x == 0) {
    result.sum = AddSums(block_sums, w.num_blocks);
    result.rank = before + 1;
    result.largest = logits[PlaceIndex(best)];
    result.logit = logits[token];
  }
  const int32_t count = min(job.num_logprobs, w.p.vocab);
  if (count < 1) return;
  SelectBest(logits, w.p.vocab, groups, w.num_groups, count, s);
  for (int32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    const int32_t index = PlaceIndex(s.places[i]);
    w.p.top[job_index * kMostTopLogprobs + i] = {index, logits[index]};
  }
}

}  // namespace

size_t SampleWorkspaceBytes(int32_t count, int32_t vocab, int32_t num_edits) {
  SampleParams p;
  p.count = count;
  p.vocab = vocab;
  p.num_edits = num_edits;
  size_t bytes = 0;
  MakeWork(p, &bytes);
  return bytes;
}

const char* SampleTokens(const SampleParams& p, cudaStream_t stream) {
  if (p.logits == nullptr || p.jobs == nullptr || p.workspace == nullptr || p.results == nullptr ||
      (p.num_edits > 0 && p.edits == nullptr) || (p.any_logprobs && p.top == nullptr)) {
    return "sample tokens: a required pointer is null";
  }
  if (p.count < 1 || p.count > 65535) return "sample tokens: count must be 1 to 65535";
  if (p.vocab < 1 || p.vocab > kMostSampledVocab) return "sample tokens: vocab must be 1 to 4194304";
  size_t bytes;
  const Work w = MakeWork(p, &bytes);
  const dim3 best_grid((w.num_groups + kThreads / 32 - 1) / (kThreads / 32), p.count);
  const dim3 sum_grid(w.num_blocks, p.count);
  cudaError_t error = LaunchDependent(BestKernel, best_grid, kThreads, 0, stream, w, false);
  const auto then = [&](auto* kernel, dim3 grid, int32_t threads, size_t shared, auto... args) {
    if (error == cudaSuccess) error = LaunchDependent(kernel, grid, threads, shared, stream, w, args...);
  };
  if (p.any_logprobs) then(SumKernel, sum_grid, kThreads, 0, true);
  if (p.num_edits > 0) {
    then(EditKernel, p.count, kThreads, 0, false);
    then(BestKernel, best_grid, kThreads, 0, true);
  }
  if (p.any_sums) then(SumKernel, sum_grid, kThreads, 0, false);
  const size_t sums_bytes = w.num_blocks * sizeof(double);
  then(DrawKernel, p.count, kSelectThreads, p.any_sums ? sums_bytes : 0);
  if (p.num_edits > 0) then(EditKernel, p.count, kThreads, 0, true);
  if (p.any_logprobs) then(ScoreKernel, p.count, kSelectThreads, sums_bytes);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace tessera::cuda
