// Attention: scores of every slot, softmax over those seen in the order of their positions, weighted sum of values in
// the same order.
namespace agentspec {
namespace {

// How keys and values of a type are multiplied.
template <class Stored>
struct AttentionOf {
  using Type = FloatAttention<Stored>;
};
#if defined(__AVX512BF16__)
template <>
struct AttentionOf<Bfloat16> {
  using Type = PairAttention;
};
#endif

template <class Stored>
struct Scores {
  using Function = void (*)(const float* const* queries, const Stored* keys, int64_t blocks, int64_t head_dim,
                            float* scores, int64_t stride);
  template <int kRows>
  static constexpr Function function() {
    return AttentionOf<Stored>::Type::template score<kRows>;
  }
};

template <class Stored>
struct Mixes {
  using Function = void (*)(const Visible* visible, const Stored* values, int64_t head_dim, const float* shares,
                            int64_t stride, const float* norms, void* const* out);
  template <int kRows>
  static constexpr Function function() {
    return AttentionOf<Stored>::Type::template mix<kRows>;
  }
};

// Turns the first `count` scores into unnormalised shares in the form that `mix` reads, with zeros up to the end of
// their vector; returns 1 / their sum.
template <class Attention>
inline float soften(float* scores, int64_t count) {
  const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = count; i < padded; ++i) scores[i] = scores[count - 1];
  Vector peaks = load(scores);
  for (int64_t i = kLanes; i < padded; i += kLanes) peaks = maximum(peaks, load(scores + i));
  const float peak = highest_lane(peaks);
  const auto share = [&](int64_t i) { return Attention::share(exponential(load(scores + i) - peak)); };
  Vector sum{};
  const int64_t last = padded - kLanes;
  for (int64_t i = 0; i < last; i += kLanes) {
    const Vector shares = share(i);
    Attention::save_shares(scores, i, shares);
    sum += shares;
  }
  Vector shares = share(last);
  for (int64_t i = count; i < padded; ++i) shares[i - last] = 0;
  Attention::save_shares(scores, last, shares);
  return 1.0f / lane_sum(sum + shares);
}

template <class Stored>
void attend(const float* const* queries, const Visible* visible, int64_t rows, const HeadCache& cache,
            int64_t head_dim, void* const* out, float* scores, int64_t score_stride) {
  static constexpr ByRows<Scores<Stored>, kScoreRows> kScores;
  static constexpr ByRows<Mixes<Stored>, kMixRows> kMixes;
  int64_t last = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const Visible& seen = visible[r];
    const int64_t end = seen.extra_count > 0 ? seen.extra[seen.extra_count - 1] + 1 : seen.contiguous;
    last = end > last ? end : last;
  }
  kScores.of[rows - 1](queries, static_cast<const Stored*>(cache.keys), (last + kKeyBlock - 1) / kKeyBlock, head_dim,
                       scores, score_stride);
  float norms[kScoreRows];
  for (int64_t r = 0; r < rows; ++r) {
    float* row = scores + r * score_stride;
    const Visible& seen = visible[r];
    const int64_t count = seen.contiguous + seen.extra_count;
    // Slots are ascending, so nothing is overwritten before it is read.
    for (int64_t i = seen.contiguous; i < count; ++i) row[i] = row[slot_of(seen, i)];
    norms[r] = soften<typename AttentionOf<Stored>::Type>(row, count);
  }
  for (int64_t r = 0; r < rows; r += kMixRows) {
    const int64_t count = rows - r < kMixRows ? rows - r : kMixRows;
    kMixes.of[count - 1](visible + r, static_cast<const Stored*>(cache.values), head_dim, scores + r * score_stride,
                         score_stride, norms + r, out + r);
  }
}

}  // namespace
}  // namespace agentspec
