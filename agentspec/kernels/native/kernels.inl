// The kernels' source, compiled once for each instruction set. The including file defines
//   AGENTSPEC_LANES        floats in a vector,
//   AGENTSPEC_NAME         the instruction set's name,
//   AGENTSPEC_TABLES       name of the function that returns this set's table,
// and is compiled with the flags of that instruction set. Nothing here may have external linkage but that function,
// and no inline function of a shared header may be called: the linker would keep one copy of it for all sets.
#include "kernels.hpp"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace agentspec {
namespace {

constexpr int kLanes = AGENTSPEC_LANES;
typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t Signed __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint16_t Half __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

constexpr int kPanelVectors = kPanelColumns / kLanes;
constexpr int kBlockVectors = kKeyBlock / kLanes;
// Rows of a register tile: with 32 wide registers, 12 rows of two accumulators and room for operands.
constexpr int kTileRows = kLanes == 16 ? 12 : kLanes == 8 ? 3 : 2;
constexpr int kScoreRows = kLanes == 16 ? 12 : 4;
constexpr int kMixRows = kLanes == 16 ? 6 : 3;
constexpr int kMixVectors = 4;
constexpr int64_t kCacheLine = 64;

struct Bfloat16 {
  uint16_t bits;
};

inline Vector load(const float* from) { return *reinterpret_cast<const Vector*>(from); }
inline void save(float* to, Vector value) { *reinterpret_cast<Vector*>(to) = value; }

inline Vector load(const Bfloat16* from) {
  const Half half = *reinterpret_cast<const Half*>(from);
  return (Vector)(__builtin_convertvector(half, Bits) << 16);
}

inline float bits_to_float(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}

inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}

// Round to nearest, ties to even; finite input.
inline Bfloat16 to_bfloat16(float value) {
  const uint32_t bits = float_to_bits(value);
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

inline void save(Bfloat16* to, Vector value) {
  const Bits bits = (Bits)value;
  const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  *reinterpret_cast<Half*>(to) = __builtin_convertvector(rounded, Half);
}

inline void save_scalar(float* to, float value) { *to = value; }
inline void save_scalar(Bfloat16* to, float value) { *to = to_bfloat16(value); }

inline Vector broadcast(float value) { return Vector{} + value; }

inline Vector maximum(Vector a, Vector b) { return a > b ? a : b; }

inline float lane_sum(Vector vector) {
  float sum = vector[0];
  for (int lane = 1; lane < kLanes; ++lane) sum += vector[lane];
  return sum;
}

// e^x for x <= 0 (and moderately positive x) to about one unit in the last place: 2^n e^r, |r| <= ln 2 / 2, with the
// Taylor polynomial of e^r to degree 7. Below -87 the result stays at e^-87.
inline Vector exponential(Vector x) {
  x = maximum(x, broadcast(-87.0f));
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer kept in the low mantissa bits
  const Vector shifted = x * 1.44269504f + magic;
  const Vector n = shifted - magic;
  Vector r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vector p = broadcast(1.0f / 5040);
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const Signed exponent = (Signed)shifted << 23;  // the magic number's own bits leave by the shift
  return (Vector)((Signed)p + exponent);
}

// ---------------------------------------------------------------------------------------------------------------
// Matrix products. A panel holds kPanelColumns columns: for float32 [depth][column]; for bfloat16
// [depth / 2][column][2], the layout of the processors' own two-way dot product.

template <class Weight>
struct Activation {
  using Type = float;
};
#if defined(__AVX512BF16__)
template <>
struct Activation<Bfloat16> {
  using Type = Bfloat16;
};
#endif

// Fetches part of the next panel while this one is multiplied: memory and arithmetic units work at the same time.
struct Ahead {
  const char* from;
  int64_t stride;  // bytes a step
  void operator()(int64_t step) const {
    __builtin_prefetch(from + step * stride, 0, 2);
    __builtin_prefetch(from + step * stride + kCacheLine, 0, 2);
  }
};

template <int kRows>
inline void accumulate(Vector (&sums)[kRows][kPanelVectors], const float* panel, const float* activations,
                       int64_t depth, const Ahead& ahead) {
  for (int64_t k = 0; k < depth; ++k) {
    ahead(k);
    Vector weights[kPanelVectors];
#pragma GCC unroll 16
    for (int c = 0; c < kPanelVectors; ++c) weights[c] = load(panel + k * kPanelColumns + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float activation = activations[r * depth + k];
#pragma GCC unroll 16
      for (int c = 0; c < kPanelVectors; ++c) sums[r][c] += weights[c] * activation;
    }
  }
}

#if defined(__AVX512BF16__)
template <int kRows>
inline void accumulate(Vector (&sums)[kRows][kPanelVectors], const Bfloat16* panel, const Bfloat16* activations,
                       int64_t depth, const Ahead& ahead) {
  const auto* pairs = reinterpret_cast<const char*>(activations);
  const auto* weights_at = reinterpret_cast<const char*>(panel);
  for (int64_t k = 0; k < depth / 2; ++k) {
    ahead(k);
    __m512bh weights[kPanelVectors];
#pragma GCC unroll 16
    for (int c = 0; c < kPanelVectors; ++c) {
      weights[c] = (__m512bh)_mm512_loadu_si512(weights_at + (k * kPanelVectors + c) * 64);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      int pair;
      __builtin_memcpy(&pair, pairs + (r * (depth / 2) + k) * 4, 4);
      const auto activation = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 16
      for (int c = 0; c < kPanelVectors; ++c) {
        sums[r][c] = (Vector)_mm512_dpbf16_ps((__m512)sums[r][c], weights[c], activation);
      }
    }
  }
}
#else
template <int kRows>
inline void accumulate(Vector (&sums)[kRows][kPanelVectors], const Bfloat16* panel, const float* activations,
                       int64_t depth, const Ahead& ahead) {
  for (int64_t k = 0; k < depth / 2; ++k) {
    ahead(k);
#pragma GCC unroll 16
    for (int c = 0; c < kPanelVectors; ++c) {
      const Bits pair = *reinterpret_cast<const Bits*>(panel + (k * kPanelColumns + c * kLanes) * 2);
      const auto even = (Vector)(pair << 16);
      const auto odd = (Vector)(pair & 0xffff0000u);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        sums[r][c] += even * activations[r * depth + 2 * k];
        sums[r][c] += odd * activations[r * depth + 2 * k + 1];
      }
    }
  }
}
#endif

// What becomes of a row of sums.
struct Replace {
  float* out;
  int64_t stride;
  int64_t columns;
  void operator()(int64_t row, const Vector (&sums)[kPanelVectors]) const {
    float* to = out + row * stride;
    if (columns == kPanelColumns) {
      for (int c = 0; c < kPanelVectors; ++c) save(to + c * kLanes, sums[c]);
      return;
    }
    for (int64_t column = 0; column < columns; ++column) to[column] = sums[column / kLanes][column % kLanes];
  }
};

struct Add {
  float* out;
  int64_t stride;
  int64_t columns;
  void operator()(int64_t row, const Vector (&sums)[kPanelVectors]) const {
    float* to = out + row * stride;
    if (columns == kPanelColumns) {
      for (int c = 0; c < kPanelVectors; ++c) save(to + c * kLanes, load(to + c * kLanes) + sums[c]);
      return;
    }
    for (int64_t column = 0; column < columns; ++column) to[column] += sums[column / kLanes][column % kLanes];
  }
};

template <class Out>
struct Gate {
  Out* out;
  int64_t stride;
  void operator()(int64_t row, const Vector (&sums)[kPanelVectors]) const {
    Out* to = out + row * stride;
    for (int c = 0; c < kPanelVectors / 2; ++c) {
      const Vector gate = sums[c];
      save(to + c * kLanes, gate / (1.0f + exponential(-gate)) * sums[c + kPanelVectors / 2]);
    }
  }
};

template <class Weight, int kRows, class Finish>
void tile(const PanelProduct& product, int64_t first, const Ahead& ahead, const Finish& finish) {
  using Input = typename Activation<Weight>::Type;
  Vector sums[kRows][kPanelVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kPanelVectors; ++c) sums[r][c] = Vector{};
  }
  accumulate<kRows>(sums, static_cast<const Weight*>(product.panel),
                    static_cast<const Input*>(product.activations) + first * product.depth, product.depth, ahead);
  for (int r = 0; r < kRows; ++r) {
    if (product.bias != nullptr) {
      for (int c = 0; c < kPanelVectors; ++c) sums[r][c] += load(product.bias + c * kLanes);
    }
    finish(first + r, sums[r]);
  }
}

template <class Weight, int kRows, class Finish>
void tile_of(int64_t rows, const PanelProduct& product, int64_t first, const Ahead& ahead, const Finish& finish) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return tile_of<Weight, kRows - 1>(rows, product, first, ahead, finish);
  }
  tile<Weight, kRows>(product, first, ahead, finish);
}

template <class Weight, class Finish>
void multiply(const PanelProduct& product, const Finish& finish) {
  // Tiles of nearly equal height: 16 rows are 8 + 8, not 12 + 4.
  const int64_t tiles = (product.rows + kTileRows - 1) / kTileRows;
  // A step of a tile reads two cache lines of the panel, so one tile can fetch all of the next one, or two tiles half.
  const int64_t fetching = tiles < 2 ? tiles : 2;
  const int64_t share = product.depth * kPanelColumns * static_cast<int64_t>(sizeof(Weight)) / fetching;
  for (int64_t index = 0; index < tiles; ++index) {
    const int64_t first = product.rows * index / tiles;
    const auto* next = static_cast<const char*>(product.next) + (index < fetching ? index * share : 0);
    const Ahead ahead{next, index < fetching ? 2 * kCacheLine / fetching : 0};
    tile_of<Weight, kTileRows>(product.rows * (index + 1) / tiles - first, product, first, ahead, finish);
  }
}

template <class Weight>
void product(const PanelProduct& operands, float* out, int64_t stride, int64_t columns) {
  multiply<Weight>(operands, Replace{out, stride, columns});
}

template <class Weight>
void product_add(const PanelProduct& operands, float* out, int64_t stride, int64_t columns) {
  multiply<Weight>(operands, Add{out, stride, columns});
}

template <class Weight>
void product_gated(const PanelProduct& operands, void* out, int64_t stride) {
  using Out = typename Activation<Weight>::Type;
  multiply<Weight>(operands, Gate<Out>{static_cast<Out*>(out), stride});
}

// ---------------------------------------------------------------------------------------------------------------
// Rows.

template <class Out>
inline void normalise(const float* row, const float* weight, float epsilon, int64_t length, Out* out) {
  Vector squares{};
  for (int64_t i = 0; i < length; i += kLanes) squares += load(row + i) * load(row + i);
  const float scale = 1.0f / __builtin_sqrtf(lane_sum(squares) / static_cast<float>(length) + epsilon);
  for (int64_t i = 0; i < length; i += kLanes) save(out + i, load(row + i) * scale * load(weight + i));
}

template <class Weight>
void activate(const float* row, int64_t length, void* out) {
  auto* to = static_cast<typename Activation<Weight>::Type*>(out);
  for (int64_t i = 0; i < length; i += kLanes) save(to + i, load(row + i));
}

template <class Weight>
void rms_norm(const float* row, const float* weight, float epsilon, int64_t length, void* out) {
  normalise(row, weight, epsilon, length, static_cast<typename Activation<Weight>::Type*>(out));
}

void rms_norm_inplace(float* row, const float* weight, float epsilon, int64_t length) {
  normalise(row, weight, epsilon, length, row);
}

void rotate(float* head, const float* cosine, const float* sine, int64_t head_dim, float scale) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float first = head[i], second = head[half + i];
    head[i] = (first * cosine[i] - second * sine[i]) * scale;
    head[half + i] = (second * cosine[i] + first * sine[i]) * scale;
  }
}

template <class Stored>
void store(const HeadCache& cache, int64_t slot, const float* key, const float* value, int64_t head_dim) {
  Stored* keys =
      static_cast<Stored*>(cache.keys) + slot / kKeyBlock * kKeyBlock * head_dim + slot % kKeyBlock;
  Stored* values = static_cast<Stored*>(cache.values) + slot * head_dim;
  for (int64_t d = 0; d < head_dim; ++d) {
    save_scalar(keys + d * kKeyBlock, key[d]);
    save_scalar(values + d, value[d]);
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Attention: scores of every slot, softmax over those seen in the order of their positions, weighted sum of values in
// the same order.

template <class Stored, int kRows>
void score(const float* const* queries, const Stored* keys, int64_t blocks, int64_t head_dim, float* scores,
           int64_t stride) {
  float tile[kMaxHeadDim * kRows];
  for (int r = 0; r < kRows; ++r) {
    for (int64_t d = 0; d < head_dim; ++d) tile[d * kRows + r] = queries[r][d];
  }
  for (int64_t block = 0; block < blocks; ++block) {
    Vector sums[kRows][kBlockVectors];
    for (int r = 0; r < kRows; ++r) {
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

template <class Stored, int kRows>
void score_rows(int64_t rows, const float* const* queries, const Stored* keys, int64_t blocks, int64_t head_dim,
                float* scores, int64_t stride) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return score_rows<Stored, kRows - 1>(rows, queries, keys, blocks, head_dim, scores, stride);
  }
  score<Stored, kRows>(queries, keys, blocks, head_dim, scores, stride);
}

// Turns the first `count` scores into unnormalised probabilities; returns 1 / their sum. Lanes behind `count` become 0.
inline float soften(float* scores, int64_t count) {
  const int64_t padded = (count + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = count; i < padded; ++i) scores[i] = scores[count - 1];
  Vector peaks = load(scores);
  for (int64_t i = kLanes; i < padded; i += kLanes) peaks = maximum(peaks, load(scores + i));
  float peak = peaks[0];
  for (int lane = 1; lane < kLanes; ++lane) peak = peaks[lane] > peak ? peaks[lane] : peak;
  for (int64_t i = 0; i < padded; i += kLanes) save(scores + i, exponential(load(scores + i) - peak));
  for (int64_t i = count; i < padded; ++i) scores[i] = 0;
  Vector sum{};
  for (int64_t i = 0; i < padded; i += kLanes) sum += load(scores + i);
  return 1.0f / lane_sum(sum);
}

// Adds `share * value` for kVectors vectors of one slot.
template <int kVectors, class Stored>
inline void mix_one(Vector (&sums)[kVectors], float share, const Stored* value) {
#pragma GCC unroll 16
  for (int c = 0; c < kVectors; ++c) sums[c] += load(value + c * kLanes) * share;
}

template <class Stored, class Out, int kRows, int kVectors>
void mix(const Visible* visible, const Stored* values, int64_t head_dim, int64_t column, const float* shares,
         int64_t stride, const float* norms, void* const* out) {
  Vector sums[kRows][kVectors];
  int64_t common = visible[0].contiguous;
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) sums[r][c] = Vector{};
    common = visible[r].contiguous < common ? visible[r].contiguous : common;
  }
  for (int64_t slot = 0; slot < common; ++slot) {
    Vector value[kVectors];
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; ++c) value[c] = load(values + slot * head_dim + column + c * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kVectors; ++c) sums[r][c] += value[c] * shares[r * stride + slot];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const float* row = shares + r * stride;
    for (int64_t slot = common; slot < visible[r].contiguous; ++slot) {
      mix_one<kVectors>(sums[r], row[slot], values + slot * head_dim + column);
    }
    for (int64_t i = 0; i < visible[r].extra_count; ++i) {
      mix_one<kVectors>(sums[r], row[visible[r].contiguous + i], values + visible[r].extra[i] * head_dim + column);
    }
    Out* to = static_cast<Out*>(out[r]) + column;
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; ++c) save(to + c * kLanes, sums[r][c] * norms[r]);
  }
}

template <class Stored, class Out, int kRows>
void mix_rows(int64_t rows, const Visible* visible, const Stored* values, int64_t head_dim, const float* shares,
              int64_t stride, const float* norms, void* const* out) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return mix_rows<Stored, Out, kRows - 1>(rows, visible, values, head_dim, shares, stride, norms, out);
    }
  }
  int64_t column = 0;
  for (; column + kMixVectors * kLanes <= head_dim; column += kMixVectors * kLanes) {
    mix<Stored, Out, kRows, kMixVectors>(visible, values, head_dim, column, shares, stride, norms, out);
  }
  for (; column < head_dim; column += kLanes) {
    mix<Stored, Out, kRows, 1>(visible, values, head_dim, column, shares, stride, norms, out);
  }
}

template <class Stored>
void attend(const float* const* queries, const Visible* visible, int64_t rows, const HeadCache& cache,
            int64_t head_dim, void* const* out, float* scores, int64_t score_stride) {
  using Out = typename Activation<Stored>::Type;
  int64_t last = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const Visible& seen = visible[r];
    const int64_t end = seen.extra_count > 0 ? seen.extra[seen.extra_count - 1] + 1 : seen.contiguous;
    last = end > last ? end : last;
  }
  score_rows<Stored, kScoreRows>(rows, queries, static_cast<const Stored*>(cache.keys),
                                  (last + kKeyBlock - 1) / kKeyBlock, head_dim, scores, score_stride);
  float norms[kScoreRows];
  for (int64_t r = 0; r < rows; ++r) {
    float* row = scores + r * score_stride;
    const Visible& seen = visible[r];
    // Slots are ascending, so nothing is overwritten before it is read.
    for (int64_t i = 0; i < seen.extra_count; ++i) row[seen.contiguous + i] = row[seen.extra[i]];
    norms[r] = soften(row, seen.contiguous + seen.extra_count);
  }
  for (int64_t r = 0; r < rows; r += kMixRows) {
    const int64_t count = rows - r < kMixRows ? rows - r : kMixRows;
    mix_rows<Stored, Out, kMixRows>(count, visible + r, static_cast<const Stored*>(cache.values), head_dim,
                                     scores + r * score_stride, score_stride, norms + r, out + r);
  }
}

template <class Weight>
constexpr Kernels table(Element element) {
  return {AGENTSPEC_NAME,
          element,
          static_cast<int>(sizeof(typename Activation<Weight>::Type)),
          product<Weight>,
          product_add<Weight>,
          product_gated<Weight>,
          activate<Weight>,
          rms_norm<Weight>,
          rms_norm_inplace,
          rotate,
          store<Weight>,
          attend<Weight>,
          kScoreRows};
}

constexpr Kernels kFloat32Table = table<float>(Element::kFloat32);
constexpr Kernels kBfloat16Table = table<Bfloat16>(Element::kBfloat16);

}  // namespace

const Kernels& AGENTSPEC_TABLES(Element element) {
  return element == Element::kFloat32 ? kFloat32Table : kBfloat16Table;
}

}  // namespace agentspec
