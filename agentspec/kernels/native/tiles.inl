// Register tiles of a matrix product.
//
// A panel of weights holds kPanelColumns columns in strips of kStripColumns: for float32 [strip][depth][column], for
// bfloat16 [strip][depth / 2][column][2], for bytes [strip][depth / 4][column][4], the layouts of the processors' own
// two-way and four-way dot products. Activations of a tile are in the same order, rows in place of columns, so that a
// step of the product reads neighbours.
namespace agentspec {
namespace {

constexpr int64_t kCacheLine = 64;
// Most rows of a tile, one strip wide, and most rows that leave registers for a second strip: sums fill the registers
// but for a few operands. AVX-512 has 32, AVX2 16; so does the portable baseline on x86.
constexpr int kTileRows = kLanes == 16 ? 24 : 3;
constexpr int kWideTileRows = kLanes == 16 ? 12 : kLanes == 8 ? 3 : 1;

constexpr int kStripVectors = kStripColumns / kLanes;
constexpr int kPanelVectors = kPanelColumns / kLanes;

// Calls `step(k, ahead)` for every step of a tile: what lies `ahead` bytes behind its weights is to be fetched. Beyond
// the end of a strip that is the strip read next, which in a tile of several lies behind the others. A step of many
// rows takes too long for the processor's own prefetching to run far enough ahead.
template <int kRows, int kStrips, class Step>
inline void each_step(int64_t steps, const Step& step) {
  constexpr int64_t kStepsAhead = kRows <= 2 ? 32 : 64;
  int64_t ahead = kStepsAhead * kCacheLine;
  int64_t k = 0;
  for (const int64_t end : {steps - kStepsAhead, steps}) {
    for (; k < end; ++k) step(k, ahead);
    ahead += (kStrips - 1) * steps * kCacheLine;
  }
}

inline void fetch(const void* weights, int64_t ahead) {
  __builtin_prefetch(static_cast<const char*>(weights) + ahead, 0, 2);
}

// One row tile [depth][kRows] against kStrips strips, into `sums`, kPanelColumns floats a row. The sums stay in
// registers throughout; a weight is read once for all rows of the tile.
template <int kRows, int kStrips>
void tile(const float* activations, const float* panel, int64_t depth, float* out) {
  constexpr int kVectors = kStrips * kStripVectors;
  Vector sums[kRows][kVectors];
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
    for (int c = 0; c < kVectors; ++c) sums[r][c] = Vector{};
  }
  each_step<kRows, kStrips>(depth, [&](int64_t k, int64_t ahead) {
#pragma GCC unroll 32
    for (int strip = 0; strip < kStrips; ++strip) fetch(panel + (strip * depth + k) * kStripColumns, ahead);
    Vector weights[kVectors];
#pragma GCC unroll 32
    for (int c = 0; c < kVectors; ++c) {
      weights[c] = load(panel + (c / kStripVectors * depth + k) * kStripColumns + c % kStripVectors * kLanes);
    }
#pragma GCC unroll 32
    for (int r = 0; r < kRows; ++r) {
      const float activation = activations[k * kRows + r];
#pragma GCC unroll 32
      for (int c = 0; c < kVectors; ++c) sums[r][c] += weights[c] * activation;
    }
  });
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
    for (int c = 0; c < kVectors; ++c) save(out + r * kPanelColumns + c * kLanes, sums[r][c]);
  }
}

#if defined(__AVX512BF16__)
template <int kRows, int kStrips>
void tile(const Bfloat16* activations, const Bfloat16* panel, int64_t depth, float* out) {
  const auto* pairs = reinterpret_cast<const char*>(activations);
  const auto* weights_at = reinterpret_cast<const char*>(panel);
  const int64_t steps = depth / 2;
  __m512 sums[kRows][kStrips];
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
    for (int c = 0; c < kStrips; ++c) sums[r][c] = _mm512_setzero_ps();
  }
  each_step<kRows, kStrips>(steps, [&](int64_t k, int64_t ahead) {
    __m512bh weights[kStrips];
#pragma GCC unroll 32
    for (int c = 0; c < kStrips; ++c) {
      const char* at = weights_at + (c * steps + k) * kCacheLine;
      fetch(at, ahead);
      weights[c] = (__m512bh)_mm512_loadu_si512(at);
    }
#pragma GCC unroll 32
    for (int r = 0; r < kRows; ++r) {
      int pair;
      __builtin_memcpy(&pair, pairs + (k * kRows + r) * 4, 4);
      const auto activation = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 32
      for (int c = 0; c < kStrips; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], weights[c], activation);
    }
  });
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
    for (int c = 0; c < kStrips; ++c) _mm512_storeu_ps(out + r * kPanelColumns + c * kLanes, sums[r][c]);
  }
}
#else
template <int kRows, int kStrips>
void tile(const float* activations, const Bfloat16* panel, int64_t depth, float* out) {
  constexpr int kVectors = kStrips * kStripVectors;
  Vector sums[kRows][kVectors];
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
    for (int c = 0; c < kVectors; ++c) sums[r][c] = Vector{};
  }
  each_step<kRows, kStrips>(depth / 2, [&](int64_t pair, int64_t ahead) {
    const int64_t k = 2 * pair;
#pragma GCC unroll 32
    for (int strip = 0; strip < kStrips; ++strip) fetch(panel + (strip * depth + k) * kStripColumns, ahead);
#pragma GCC unroll 32
    for (int c = 0; c < kVectors; ++c) {
      const Bfloat16* at = panel + (c / kStripVectors * depth + k) * kStripColumns + c % kStripVectors * kLanes * 2;
      const Bits two = *reinterpret_cast<const Bits*>(at);
      const auto even = (Vector)(two << 16);
      const auto odd = (Vector)(two & 0xffff0000u);
#pragma GCC unroll 32
      for (int r = 0; r < kRows; ++r) {
        sums[r][c] += even * activations[k * kRows + r];
        sums[r][c] += odd * activations[(k + 1) * kRows + r];
      }
    }
  });
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
    for (int c = 0; c < kVectors; ++c) save(out + r * kPanelColumns + c * kLanes, sums[r][c]);
  }
}
#endif

#if defined(__AVX512VNNI__)
template <int kRows, int kStrips>
void tile(const int8_t* activations, const Byte* panel, int64_t depth, int32_t* out) {
  const auto* weights_at = reinterpret_cast<const char*>(panel);
  const int64_t steps = depth / 4;
  __m512i sums[kRows][kStrips];
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
    for (int c = 0; c < kStrips; ++c) sums[r][c] = _mm512_setzero_si512();
  }
  each_step<kRows, kStrips>(steps, [&](int64_t k, int64_t ahead) {
    __m512i weights[kStrips];
#pragma GCC unroll 32
    for (int c = 0; c < kStrips; ++c) {
      const char* at = weights_at + (c * steps + k) * kCacheLine;
      fetch(at, ahead);
      weights[c] = _mm512_loadu_si512(at);
    }
#pragma GCC unroll 32
    for (int r = 0; r < kRows; ++r) {
      int four;
      __builtin_memcpy(&four, activations + (k * kRows + r) * 4, 4);
      const __m512i activation = _mm512_set1_epi32(four);
#pragma GCC unroll 32
      for (int c = 0; c < kStrips; ++c) sums[r][c] = _mm512_dpbusd_epi32(sums[r][c], weights[c], activation);
    }
  });
#pragma GCC unroll 32
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 32
    for (int c = 0; c < kStrips; ++c) _mm512_storeu_si512(out + r * kPanelColumns + c * kLanes, sums[r][c]);
  }
}
#endif

// The first kWideTileRows take a whole panel, the others a strip.
template <class Weight>
struct Tiles {
  using Function = void (*)(const typename Activation<Weight>::Type* activations, const Weight* panel, int64_t depth,
                            typename Sum<Weight>::Type* out);
  template <int kRows>
  static constexpr Function function() {
    return tile<kRows, kRows <= kWideTileRows ? kPanelColumns / kStripColumns : 1>;
  }
};

}  // namespace
}  // namespace agentspec
