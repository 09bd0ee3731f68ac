#include "kernels/cpu/fmha/kv_cache.h"

#include <algorithm>

#include "kernels/cpu/checks.h"
#include "kernels/cpu/kernel_table.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kTokensPerChunk = 16;

// The run of 16 tokens that holds a slot, in slots of its KV head's order: times head_dim or value_dim it is the
// run's first element.
int64_t RunSlot(const KvCache& cache, int64_t slot, int64_t kv_head) {
  const int64_t block = slot / cache.block_size;
  const int64_t run = slot % cache.block_size / kKvTokenRun;
  return (block * cache.kv_heads + kv_head) * cache.block_size + run * kKvTokenRun;
}

}  // namespace

absl::Status CheckKvCache(const KvCache& cache) {
  TESSERA_KERNEL_CHECK(cache.num_blocks > 0 && cache.kv_heads > 0, "KV cache of ", cache.num_blocks,
                       " blocks and ", cache.kv_heads, " KV heads");
  TESSERA_KERNEL_CHECK(cache.block_size >= kKvTokenRun && (cache.block_size & (cache.block_size - 1)) == 0,
                       "KV block size ", cache.block_size, " must be a power of two and at least ",
                       kKvTokenRun);
  TESSERA_KERNEL_CHECK(cache.head_dim > 0 && cache.head_dim % 2 == 0 && cache.head_dim <= kMaxHeadDim,
                       "head dim ", cache.head_dim, " must be even and at most ", kMaxHeadDim);
  TESSERA_KERNEL_CHECK(cache.value_dim > 0 && cache.value_dim % 2 == 0 && cache.value_dim <= cache.head_dim,
                       "value dim ", cache.value_dim, " must be even and at most the head dim ",
                       cache.head_dim);
  TESSERA_KERNEL_CHECK(
      cache.shared_dim == 0 || (cache.shared_dim == cache.value_dim && cache.shared_dim < cache.head_dim),
      "shared dim ", cache.shared_dim, " must be 0 or the value dim ", cache.value_dim,
      ", and less than the head dim ", cache.head_dim);
  TESSERA_KERNEL_CHECK(cache.k != nullptr && cache.v != nullptr, "KV cache without memory");
  TESSERA_KERNEL_CHECK(
      reinterpret_cast<uintptr_t>(cache.k) % 64 == 0 && reinterpret_cast<uintptr_t>(cache.v) % 64 == 0,
      "KV cache memory must be aligned to 64 bytes");
  return absl::OkStatus();
}

absl::Status WriteKv(const KvCache& cache, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                     const int64_t* slots, int64_t tokens, ThreadPool& pool) {
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckKvCache(cache));
  const int64_t heads = cache.kv_heads;
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("WriteKv", "k", k, k_stride, tokens, heads * cache.head_dim));
  TESSERA_KERNEL_RETURN_IF_ERROR(CheckMatrix("WriteKv", "v", v, v_stride, tokens, heads * cache.value_dim));
  TESSERA_KERNEL_CHECK(tokens == 0 || slots != nullptr, "WriteKv: null slots");
  const int64_t num_slots = cache.num_blocks * cache.block_size;
  for (int64_t t = 0; t < tokens; ++t) {
    TESSERA_KERNEL_CHECK(slots[t] < num_slots, "WriteKv: slot ", slots[t], " of token ", t,
                         " is outside a cache of ", num_slots, " slots");
  }
  const KernelTable& table = Kernels();
  pool.ParallelFor((tokens + kTokensPerChunk - 1) / kTokensPerChunk, [&](int64_t chunk) {
    const int64_t end = std::min(tokens, (chunk + 1) * kTokensPerChunk);
    for (int64_t t = chunk * kTokensPerChunk; t < end; ++t) {
      if (slots[t] < 0) continue;
      const int64_t in_run = slots[t] % kKvTokenRun;
      for (int64_t h = 0; h < cache.kv_heads; ++h) {
        const int64_t run = RunSlot(cache, slots[t], h);
        table.to_bf16(v + t * v_stride + h * cache.value_dim, cache.value_dim,
                      cache.v + (run + in_run) * cache.value_dim);
        Bf16 key[kMaxHeadDim];
        const int64_t k_dim = cache.k_dim();
        table.to_bf16(k + t * k_stride + h * cache.head_dim + cache.shared_dim, k_dim, key);
        Bf16* out = cache.k + run * k_dim + in_run * 2;
        for (int64_t d = 0; d < k_dim; d += 2, out += 2 * kKvTokenRun) {
          out[0] = key[d];
          out[1] = key[d + 1];
        }
      }
    }
  });
  return absl::OkStatus();
}

void ReadKv(const KvCache& cache, int64_t slot, int64_t kv_head, float* k, float* v) {
  const int64_t run = RunSlot(cache, slot, kv_head);
  const int64_t in_run = slot % kKvTokenRun;
  const Bf16* keys = cache.k + run * cache.k_dim();
  for (int64_t d = 0; d < cache.value_dim; ++d) v[d] = ToFloat(cache.v[(run + in_run) * cache.value_dim + d]);
  for (int64_t d = 0; d < cache.shared_dim; ++d) k[d] = v[d];
  for (int64_t d = 0; d < cache.k_dim(); ++d) {
    k[cache.shared_dim + d] = ToFloat(keys[d / 2 * 2 * kKvTokenRun + in_run * 2 + d % 2]);
  }
}

}  // namespace tessera::cpu
