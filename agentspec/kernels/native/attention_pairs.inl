// The two products of attention in bfloat16, by the processor's two-way dot product: pairs of a head's dimensions for
// the scores, pairs of positions for the values. A pair holds neighbours in the order of positions whatever their
// slots, so that a token's sums are the same in a draft tree as in plain decoding.
#if defined(__AVX512BF16__)
namespace agentspec {
namespace {

struct PairAttention {
  // See FloatAttention.
  template <int kRows>
  static void score(const float* const* queries, const Bfloat16* keys, int64_t blocks, int64_t head_dim,
                    float* scores, int64_t stride) {
    Bfloat16 rows[kRows * kMaxHeadDim], tile[kRows * kMaxHeadDim];  // [kRows][head_dim]; [head_dim / 2][kRows][2]
    for (int r = 0; r < kRows; ++r) {
      for (int64_t d = 0; d < head_dim; d += kLanes) save(rows + r * head_dim + d, load(queries[r] + d));
    }
    transpose(rows, kRows, head_dim / 2, tile);
    const __m512i order = interleaving();
    for (int64_t block = 0; block < blocks; ++block) {
      __m512 sums[kRows];
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) sums[r] = _mm512_setzero_ps();
      const Bfloat16* at = keys + block * head_dim * kKeyBlock;
      for (int64_t d = 0; d < head_dim; d += 2) {
        // Two dimensions of 16 slots, one behind the other.
        const auto key = (__m512bh)_mm512_permutexvar_epi16(order, _mm512_loadu_si512(at + d * kKeyBlock));
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          sums[r] = _mm512_dpbf16_ps(sums[r], key, broadcast_pair(tile + (d / 2 * kRows + r) * 2));
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) _mm512_storeu_ps(scores + r * stride + block * kKeyBlock, sums[r]);
    }
  }

  // Rounded, so that the sum by which they are divided is that of the shares multiplied.
  static Vector share(Vector exact) { return (Vector)(rounded(exact) << 16); }

  // A row of shares takes the first half of its scores.
  static void save_shares(float* row, int64_t i, Vector shares) {
    save_bits(reinterpret_cast<Bfloat16*>(row) + i, (Bits)shares >> 16);
  }

  // See FloatAttention.
  template <int kRows>
  static void mix(const Visible* visible, const Bfloat16* values, int64_t head_dim, const float* shares,
                  int64_t stride, const float* norms, void* const* out) {
    int64_t column = 0;
    for (; column + kMixVectors * kLanes <= head_dim; column += kMixVectors * kLanes) {
      mix_columns<kRows, kMixVectors>(visible, values, head_dim, column, shares, stride, norms, out);
    }
    for (; column < head_dim; column += kLanes) {
      mix_columns<kRows, 1>(visible, values, head_dim, column, shares, stride, norms, out);
    }
  }

 private:
  // Picks 0, 16, 1, 17, ... of 32 numbers.
  static __m512i interleaving() {
    alignas(64) uint16_t order[2 * kKeyBlock];
    for (int slot = 0; slot < kKeyBlock; ++slot) {
      order[2 * slot] = static_cast<uint16_t>(slot);
      order[2 * slot + 1] = static_cast<uint16_t>(kKeyBlock + slot);
    }
    return _mm512_load_si512(order);
  }

  static __m512bh broadcast_pair(const Bfloat16* pair) {
    int bits;
    __builtin_memcpy(&bits, pair, 4);
    return (__m512bh)_mm512_set1_epi32(bits);
  }

  // Columns of two positions beside each other, the odd one zeros where it is null. A single vector holds 16 columns
  // in their own order; of several, every two hold 32 columns in an order that `save_columns` undoes.
  template <int kVectors>
  static void load_columns(const Bfloat16* even, const Bfloat16* odd, __m512bh (&pairs)[kVectors]) {
    if constexpr (kVectors == 1) {
      const auto low = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
      auto high = _mm512_setzero_si512();
      if (odd != nullptr) high = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
      pairs[0] = (__m512bh)_mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    } else {
#pragma GCC unroll 16
      for (int c = 0; c < kVectors; c += 2) {
        const auto low = _mm512_loadu_si512(even + c * kLanes);
        const auto high = odd == nullptr ? _mm512_setzero_si512() : _mm512_loadu_si512(odd + c * kLanes);
        pairs[c] = (__m512bh)_mm512_unpacklo_epi16(low, high);
        pairs[c + 1] = (__m512bh)_mm512_unpackhi_epi16(low, high);
      }
    }
  }

  template <int kVectors>
  static void save_columns(Bfloat16* to, const __m512 (&sums)[kVectors], float norm) {
    if constexpr (kVectors == 1) {
      save(to, (Vector)sums[0] * norm);
    } else {
#pragma GCC unroll 16
      for (int c = 0; c < kVectors; c += 2) {
        const auto low = (__m512i)rounded((Vector)sums[c] * norm);
        const auto high = (__m512i)rounded((Vector)sums[c + 1] * norm);
        _mm512_storeu_si512(to + c * kLanes, _mm512_packus_epi32(low, high));
      }
    }
  }

  template <int kRows, int kVectors>
  static void mix_columns(const Visible* visible, const Bfloat16* values, int64_t head_dim, int64_t column,
                          const float* shares, int64_t stride, const float* norms, void* const* out) {
    const auto share = [&](int r, int64_t i) {
      return broadcast_pair(reinterpret_cast<const Bfloat16*>(shares + r * stride) + i);
    };
    __m512 sums[kRows][kVectors];
    int64_t common = visible[0].contiguous;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
      for (int c = 0; c < kVectors; ++c) sums[r][c] = _mm512_setzero_ps();
      common = visible[r].contiguous < common ? visible[r].contiguous : common;
    }
    common = common / 2 * 2;
    values += column;
    __m512bh pairs[kVectors];
    for (int64_t slot = 0; slot < common; slot += 2) {
      load_columns<kVectors>(values + slot * head_dim, values + (slot + 1) * head_dim, pairs);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512bh shared = share(r, slot);
#pragma GCC unroll 16
        for (int c = 0; c < kVectors; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], pairs[c], shared);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Visible& seen = visible[r];
      const int64_t count = seen.contiguous + seen.extra_count;
      for (int64_t i = common; i < count; i += 2) {
        const Bfloat16* odd = i + 1 < count ? values + slot_of(seen, i + 1) * head_dim : nullptr;
        load_columns<kVectors>(values + slot_of(seen, i) * head_dim, odd, pairs);
        const __m512bh shared = share(r, i);
#pragma GCC unroll 16
        for (int c = 0; c < kVectors; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], pairs[c], shared);
      }
      save_columns<kVectors>(static_cast<Bfloat16*>(out[r]) + column, sums[r], norms[r]);
    }
  }
};

}  // namespace
}  // namespace agentspec
#endif
