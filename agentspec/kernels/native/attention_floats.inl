// The two products of attention in floats, on any processor.
namespace agentspec {
namespace {

constexpr int kScoreRows = kLanes == 16 ? 12 : 4;
constexpr int kMixRows = kLanes == 16 ? 6 : 3;
constexpr int kMixVectors = 4;

template <class Stored>
struct FloatAttention {
  static constexpr int kBlockVectors = kKeyBlock / kLanes;

  // Scores of kRows queries against whole blocks of keys, `stride` floats a row.
  template <int kRows>
  static void score(const float* const* queries, const Stored* keys, int64_t blocks, int64_t head_dim, float* scores,
                    int64_t stride) {
    float tile[kMaxHeadDim * kRows];  // [head_dim][kRows]
    for (int r = 0; r < kRows; ++r) {
      for (int64_t d = 0; d < head_dim; ++d) tile[d * kRows + r] = queries[r][d];
    }
    for (int64_t block = 0; block < blocks; ++block) {
      Vector sums[kRows][kBlockVectors];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int c = 0; c < kBlockVectors; ++c) sums[r][c] = Vector{};
      }
      const Stored* at = keys + block * head_dim * kKeyBlock;
      for (int64_t d = 0; d < head_dim; ++d) {
        Vector key[kBlockVectors];
#pragma GCC unroll 16
        for (int c = 0; c < kBlockVectors; ++c) key[c] = load(at + d * kKeyBlock + c * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
          for (int c = 0; c < kBlockVectors; ++c) sums[r][c] += key[c] * tile[d * kRows + r];
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int c = 0; c < kBlockVectors; ++c) {
          save(scores + r * stride + block * kKeyBlock + c * kLanes, sums[r][c]);
        }
      }
    }
  }

  // Shares as `mix` multiplies them.
  static Vector share(Vector exact) { return exact; }

  // Keeps shares `i` on of a row for `mix`, where no later ones are overwritten.
  static void save_shares(float* row, int64_t i, Vector shares) { save(row + i, shares); }

  // Values weighted by the shares of kRows queries, `stride` a row, in the order of positions.
  template <int kRows>
  static void mix(const Visible* visible, const Stored* values, int64_t head_dim, const float* shares, int64_t stride,
                  const float* norms, void* const* out) {
    int64_t column = 0;
    for (; column + kMixVectors * kLanes <= head_dim; column += kMixVectors * kLanes) {
      mix_columns<kRows, kMixVectors>(visible, values, head_dim, column, shares, stride, norms, out);
    }
    for (; column < head_dim; column += kLanes) {
      mix_columns<kRows, 1>(visible, values, head_dim, column, shares, stride, norms, out);
    }
  }

 private:
  template <int kRows, int kVectors>
  static void mix_columns(const Visible* visible, const Stored* values, int64_t head_dim, int64_t column,
                          const float* shares, int64_t stride, const float* norms, void* const* out) {
    Vector sums[kRows][kVectors];
    int64_t common = visible[0].contiguous;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kVectors; ++c) sums[r][c] = Vector{};
      common = visible[r].contiguous < common ? visible[r].contiguous : common;
    }
    values += column;
    for (int64_t slot = 0; slot < common; ++slot) {
      Vector value[kVectors];
#pragma GCC unroll 16
      for (int c = 0; c < kVectors; ++c) value[c] = load(values + slot * head_dim + c * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
        for (int c = 0; c < kVectors; ++c) sums[r][c] += value[c] * shares[r * stride + slot];
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Visible& seen = visible[r];
      for (int64_t i = common; i < seen.contiguous + seen.extra_count; ++i) {
        const Stored* value = values + slot_of(seen, i) * head_dim;
#pragma GCC unroll 16
        for (int c = 0; c < kVectors; ++c) sums[r][c] += load(value + c * kLanes) * shares[r * stride + i];
      }
      float* to = static_cast<float*>(out[r]) + column;
#pragma GCC unroll 16
      for (int c = 0; c < kVectors; ++c) save(to + c * kLanes, sums[r][c] * norms[r]);
    }
  }
};

}  // namespace
}  // namespace agentspec
