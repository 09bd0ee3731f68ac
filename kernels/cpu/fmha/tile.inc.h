// One tile of up to 64 keys against up to kAttentionRows query rows of one KV head. Written once over F16; the
// file that includes it says how many rows, runs of scores and vectors of values its registers hold.
//
// Each row's arithmetic is the same for every number of rows: scores over the elements that a key shares with its
// value, sixteen sums at once, then over the pairs of the others in ascending order,
// the four runs' exponentials added in order, values of keys in ascending order. Rows of one tile may see
// different keys (a causal diagonal): a key is added only to the rows that see it, never with weight zero,
// so whatever stands in the others' slots cannot reach a row.

static constexpr float kMinusInfinity = -__builtin_inff();

// How a run's pairs of key elements meet a query's: two FMAs, odd element first. A file may have another one.
struct KeyFma {
  using Value = float;  // of q_panel
  struct Keys {
    F16 even, odd;
  };
  struct Query {
    F16 even, odd;
  };
  static VEC_INLINE Keys LoadKeys(const Bf16* p) {
    Keys keys;
    LoadPairs(p, &keys.even, &keys.odd);
    return keys;
  }
  static VEC_INLINE Query SetQuery(const float* q) { return {Set(q[0]), Set(q[1])}; }
  static VEC_INLINE F16 Dot(const Keys& keys, const Query& q, F16 sum) {
    return MulAdd(keys.even, q.even, MulAdd(keys.odd, q.odd, sum));
  }
};

// Products of R queries with the values of a run of 16 keys, for keys that begin with their values: each row's 16
// results in order. Not inlined: it would be there once for every run of every tile shape.
template <int R>
static __attribute__((noinline)) void SharedScores(const AttentionTileArgs& a, int run, F16* out) {
  alignas(64) float products[R][16];
  for (int j = 0; j < 16; ++j) {
    const Bf16* value = a.v_runs[run] + j * a.value_dim;
    F16 sum[R];
    VEC_UNROLL
    for (int r = 0; r < R; ++r) sum[r] = Zero();
    int64_t d = 0;
    for (; d + 16 <= a.value_dim; d += 16) {
      const F16 v = LoadBf16(value + d);
      VEC_UNROLL
      for (int r = 0; r < R; ++r) sum[r] = MulAdd(v, Load(a.q_shared + r * a.value_dim + d), sum[r]);
    }
    if (d < a.value_dim) {
      Bf16 lanes[16] = {};
      for (int64_t i = d; i < a.value_dim; ++i) lanes[i - d] = value[i];
      const F16 v = LoadBf16(lanes);
      VEC_UNROLL
      for (int r = 0; r < R; ++r) {
        sum[r] = MulAdd(v, LoadN(a.q_shared + r * a.value_dim + d, a.value_dim - d), sum[r]);
      }
    }
    VEC_UNROLL
    for (int r = 0; r < R; ++r) products[r][j] = ReduceAdd(sum[r]);
  }
  VEC_UNROLL
  for (int r = 0; r < R; ++r) out[r] = Load(products[r]);
}

// Scores of N runs of 16 keys: score[r][16 * (first + i)].
template <typename D, int R, int N>
static void ScoreRuns(const AttentionTileArgs& a, int first, float (*score)[64]) {
  F16 sum[N][R];
  VEC_UNROLL
  for (int i = 0; i < N; ++i) {
    VEC_UNROLL
    for (int r = 0; r < R; ++r) sum[i][r] = Zero();
    if (a.q_shared != nullptr) {
      F16 shared[R];  // its own array: the sums stay in registers
      SharedScores<R>(a, first + i, shared);
      VEC_UNROLL
      for (int r = 0; r < R; ++r) sum[i][r] = shared[r];
    }
  }
  const auto* q = static_cast<const typename D::Value*>(a.q_panel);
  const int64_t pairs = a.k_dim / 2;
  for (int64_t d = 0; d < pairs; ++d, q += 2 * R) {
    typename D::Keys keys[N];
    VEC_UNROLL
    for (int i = 0; i < N; ++i) {
      // This tile's values come into the first-level cache, the next tile's keys into the second.
      Prefetch(reinterpret_cast<const char*>(a.v_runs[first + i]) + d * 64);
      PrefetchL2(reinterpret_cast<const char*>(a.next_k_runs[first + i]) + d * 64);
      keys[i] = D::LoadKeys(a.k_runs[first + i] + d * 32);
    }
    VEC_UNROLL
    for (int r = 0; r < R; ++r) {
      const typename D::Query query = D::SetQuery(q + 2 * r);
      VEC_UNROLL
      for (int i = 0; i < N; ++i) sum[i][r] = D::Dot(keys[i], query, sum[i][r]);
    }
  }
  const F16 scale = Set(a.scale);
  VEC_UNROLL
  for (int i = 0; i < N; ++i) {
    VEC_UNROLL
    for (int r = 0; r < R; ++r) {
      const int begin = a.begin[r] - 16 * (first + i);
      const int end = a.end[r] - 16 * (first + i);
      Store(KeepRange(Mul(sum[i][r], scale), begin, end, kMinusInfinity), score[r] + 16 * (first + i));
    }
  }
}

// Values: out[r] = out[r] * alpha[r] + sum over keys of p[r][j] * v[j], for R rows with the same out stride.
// All rows see keys [begin, end); row r also sees those from row_begin[r] and up to row_end[r].
template <int R, int W>
static void AccumulateValues(const AttentionTileArgs& a, int row0, int64_t d, int64_t width, int begin,
                             int end, const float* alpha, const float (*p)[64]) {
  F16 sum[R][W];
  VEC_UNROLL
  for (int r = 0; r < R; ++r) {
    const float* out = a.out + (row0 + r) * a.value_dim + d;
    VEC_UNROLL
    for (int w = 0; w < W; ++w)
      sum[r][w] = Mul(LoadN(out + 16 * w, width - 16 * w < 16 ? width - 16 * w : 16), Set(alpha[row0 + r]));
  }
  const auto value = [&](int j, F16* v) VEC_LAMBDA_INLINE {
    const Bf16* source = a.v_runs[j / 16] + (j % 16) * a.value_dim + d;
    if (width == 16 * W) {
      VEC_UNROLL
      for (int w = 0; w < W; ++w) v[w] = LoadBf16(source + 16 * w);
    } else {
      Bf16 lanes[16 * W] = {};
      for (int64_t i = 0; i < width; ++i) lanes[i] = source[i];
      VEC_UNROLL
      for (int w = 0; w < W; ++w) v[w] = LoadBf16(lanes + 16 * w);
    }
  };
  const auto one_row = [&](int r, int from, int to) VEC_LAMBDA_INLINE {
    for (int j = from; j < to; ++j) {
      F16 v[W];
      value(j, v);
      VEC_UNROLL
      for (int w = 0; w < W; ++w) sum[r][w] = MulAdd(Set(p[row0 + r][j]), v[w], sum[r][w]);
    }
  };
  if (R > 1) {
    VEC_UNROLL
    for (int r = 0; r < R; ++r) one_row(r, a.begin[row0 + r], begin);
  }
  for (int j = begin; j < end; ++j) {
    // Meanwhile the next tile's values come nearer: a line for each key and 32 columns.
    if (d % 32 == 0) PrefetchL2(a.next_v_runs[j / 16] + (j % 16) * a.value_dim + d);
    F16 v[W];
    value(j, v);
    VEC_UNROLL
    for (int r = 0; r < R; ++r) {
      const F16 weight = Set(p[row0 + r][j]);
      VEC_UNROLL
      for (int w = 0; w < W; ++w) sum[r][w] = MulAdd(weight, v[w], sum[r][w]);
    }
  }
  if (R > 1) {
    VEC_UNROLL
    for (int r = 0; r < R; ++r) one_row(r, end, a.end[row0 + r]);
  }
  VEC_UNROLL
  for (int r = 0; r < R; ++r) {
    float* out = a.out + (row0 + r) * a.value_dim + d;
    VEC_UNROLL
    for (int w = 0; w < W; ++w) StoreN(sum[r][w], out + 16 * w, width - 16 * w < 16 ? width - 16 * w : 16);
  }
}

template <int R>
static void ValueColumns(const AttentionTileArgs& a, int row0, int begin, int end, const float* alpha,
                         const float (*p)[64]) {
  constexpr int kWidth = 16 * kValueVectors;
  int64_t d = 0;
  for (; d + kWidth <= a.value_dim; d += kWidth) {
    AccumulateValues<R, kValueVectors>(a, row0, d, kWidth, begin, end, alpha, p);
  }
  for (; d < a.value_dim; d += 16) {
    const int64_t width = a.value_dim - d < 16 ? a.value_dim - d : 16;
    AccumulateValues<R, 1>(a, row0, d, width, begin, end, alpha, p);
  }
}

template <typename D, int R>
static void AttentionTileT(const AttentionTileArgs& a) {
  int first_key = 64, last_key = 0;       // seen by any row
  int common_begin = 0, common_end = 64;  // seen by all rows
  bool all_rows = true;
  VEC_UNROLL
  for (int r = 0; r < R; ++r) {
    if (a.begin[r] >= a.end[r]) {
      all_rows = false;
      continue;
    }
    first_key = a.begin[r] < first_key ? a.begin[r] : first_key;
    last_key = a.end[r] > last_key ? a.end[r] : last_key;
    common_begin = a.begin[r] > common_begin ? a.begin[r] : common_begin;
    common_end = a.end[r] < common_end ? a.end[r] : common_end;
  }
  if (first_key >= last_key) return;

  alignas(64) float p[R][64];
  const int first_run = first_key / 16;
  const int end_run = (last_key + 15) / 16;
  int run = first_run;
  constexpr int kRunsAtOnce = ScoreRunsAtOnce(R);
  for (; run + kRunsAtOnce <= end_run; run += kRunsAtOnce) ScoreRuns<D, R, kRunsAtOnce>(a, run, p);
  for (; run < end_run; ++run) ScoreRuns<D, R, 1>(a, run, p);

  // Rescaling factors of all rows at once: one exp in place of one for each row.
  float new_max[16] = {};
  float alpha[16] = {};
  for (int r = 0; r < R; ++r) {
    if (a.begin[r] >= a.end[r]) continue;
    F16 max = Load(p[r] + 16 * first_run);
    for (int i = first_run + 1; i < end_run; ++i) max = Max(max, Load(p[r] + 16 * i));
    const float tile_max = ReduceMax(max);
    new_max[r] = tile_max > a.max[r] ? tile_max : a.max[r];
    alpha[r] = a.max[r] - new_max[r];
  }
  Store(Exp(Load(alpha)), alpha);
  for (int r = 0; r < R; ++r) {
    if (a.begin[r] >= a.end[r]) continue;
    F16 sum = Zero();
    for (int i = first_run; i < end_run; ++i) {
      const F16 e = Exp(Sub(Load(p[r] + 16 * i), Set(new_max[r])));
      Store(e, p[r] + 16 * i);
      sum = Add(sum, e);
    }
    a.sum[r] = a.sum[r] * alpha[r] + ReduceAdd(sum);
    a.max[r] = new_max[r];
  }

  if (R > 1 && all_rows && common_begin < common_end) {
    ValueColumns<R>(a, 0, common_begin, common_end, alpha, p);
  } else {
    VEC_UNROLL
    for (int r = 0; r < R; ++r) {
      if (a.begin[r] < a.end[r]) ValueColumns<1>(a, r, a.begin[r], a.end[r], alpha, p);
    }
  }
}

// The instance for a.rows rows.
template <typename D, int R = kAttentionRows>
static void AttentionTile(const AttentionTileArgs& a) {
  if (a.rows == R) return AttentionTileT<D, R>(a);
  if constexpr (R > 1) AttentionTile<D, R - 1>(a);
}
