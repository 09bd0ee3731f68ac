// Token panels: for each pair of columns the values of all tokens stand together, so that a tile kernel reads
// its activations front to back whatever the row stride of x is.

static VEC_INLINE void SetPanelValue(Bf16 x, Bf16* out) { *out = x; }
static VEC_INLINE void SetPanelValue(Bf16 x, float* out) { *out = ToFloat(x); }

template <typename Value>
static void PackPanel(const Bf16* const* rows, int t, int64_t k, void* panel) {
  Value* out = static_cast<Value*>(panel);
  for (int i = 0; i < t; ++i) {
    const Bf16* row = rows[i];
    Value* column = out + 2 * i;
    for (int64_t p = 0; p < k / 2; ++p) {
      SetPanelValue(row[2 * p], column + p * 2 * t);
      SetPanelValue(row[2 * p + 1], column + p * 2 * t + 1);
    }
    if (k % 2 != 0) {
      SetPanelValue(row[k - 1], column + (k / 2) * 2 * t);
      SetPanelValue(Bf16{}, column + (k / 2) * 2 * t + 1);
    }
  }
}
