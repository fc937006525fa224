// Products of bytes: weights of 8 bits against activations that are rounded to 8 bits, row by row, as they are packed.
//
// Both are symmetric around zero: a number is its byte times the scale of its column of weights or its row of
// activations. Sums of bytes are exact.
#if defined(__AVX512VNNI__)
namespace agentspec {
namespace {

// The activations' greatest byte.
constexpr float kGreatestByte = 127.0f;

// Rounds a row to bytes; returns their sum. `scale` is what they are to be multiplied by.
template <class Source>
int32_t to_bytes(const Source* row, int64_t depth, int8_t* out, float& scale) {
  Vector peaks{};
  for (int64_t k = 0; k < depth; k += kLanes) {
    const Vector numbers = load(row + k);
    peaks = maximum(peaks, maximum(numbers, -numbers));
  }
  const float peak = highest_lane(peaks);
  scale = peak / kGreatestByte;
  const float inverse = peak > 0 ? kGreatestByte / peak : 0.0f;
  __m512i sums = _mm512_setzero_si512();
  for (int64_t k = 0; k < depth; k += kLanes) {
    const __m512i whole = _mm512_cvtps_epi32((__m512)(load(row + k) * inverse));
    sums = _mm512_add_epi32(sums, whole);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + k), _mm512_cvtsepi32_epi8(whole));
  }
  return _mm512_reduce_add_epi32(sums);
}

// `out.values` has room for the source, half of which at most the bytes take: they are rounded into the second half.
template <class Source>
void pack_bytes(const void* activations, int64_t rows, int64_t depth, const PackedRows& out) {
  auto* packed = static_cast<int8_t*>(out.values);
  int8_t* rounded_rows = packed + rows * depth;
  for (int64_t row = 0; row < rows; ++row) {
    out.row_sums[row] = to_bytes(static_cast<const Source*>(activations) + row * depth, depth,
                                 rounded_rows + row * depth, out.row_scales[row]);
  }
  transpose_tiles<Byte>(rounded_rows, rows, depth, packed);
}

template <class Source>
constexpr Products kByteProducts = {pack_bytes<Source>, product<Byte>, product_add<Byte>, product_gated<Byte, Source>};

}  // namespace
}  // namespace agentspec
#endif
