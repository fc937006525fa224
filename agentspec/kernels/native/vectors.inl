// Vectors of AGENTSPEC_LANES floats, and numbers of two bytes.
namespace agentspec {
namespace {

constexpr int kLanes = AGENTSPEC_LANES;
typedef float Vector __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t Signed __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef uint16_t Half __attribute__((vector_size(kLanes * 2), aligned(2), may_alias));

struct Bfloat16 {
  uint16_t bits;
};

// A weight of 8 bits, kByteOffset above what it stands for.
struct Byte {
  uint8_t bits;
};

// What a product with such weights reads: float, or bfloat16 where the processor multiplies those; or bytes.
template <class Weight>
struct Activation {
  using Type = float;
};
template <>
struct Activation<Byte> {
  using Type = int8_t;
};
#if defined(__AVX512BF16__)
template <>
struct Activation<Bfloat16> {
  using Type = Bfloat16;
};
#endif

// What a tile of such weights sums up.
template <class Weight>
struct Sum {
  using Type = float;
};
template <>
struct Sum<Byte> {
  using Type = int32_t;
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

// The bits of the bfloat16 next to each number, rounded as `to_bfloat16` does.
inline Bits rounded(Vector value) {
  const Bits bits = (Bits)value;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// Saves numbers whose bits are those of bfloat16.
inline void save_bits(Bfloat16* to, Bits bits) { *reinterpret_cast<Half*>(to) = __builtin_convertvector(bits, Half); }
inline void save(Bfloat16* to, Vector value) { save_bits(to, rounded(value)); }

inline void save_scalar(float* to, float value) { *to = value; }
inline void save_scalar(Bfloat16* to, float value) { *to = to_bfloat16(value); }

inline Vector broadcast(float value) { return Vector{} + value; }

inline Vector maximum(Vector a, Vector b) { return a > b ? a : b; }

inline float highest_lane(Vector numbers) {
  float highest = numbers[0];
  for (int lane = 1; lane < kLanes; ++lane) highest = numbers[lane] > highest ? numbers[lane] : highest;
  return highest;
}

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

typedef float Word __attribute__((may_alias));
typedef float Four __attribute__((vector_size(16), aligned(4), may_alias));

// Four of the eight words of x and y, by number.
template <int kFirst, int kSecond, int kThird, int kFourth>
inline Four pick(Four x, Four y) {
#if defined(__clang__)
  return __builtin_shufflevector(x, y, kFirst, kSecond, kThird, kFourth);
#else
  typedef int32_t Order __attribute__((vector_size(16)));
  return __builtin_shuffle(x, y, Order{kFirst, kSecond, kThird, kFourth});
#endif
}

// Transposes words of 32 bits from [height][words] to [words][height], four by four; `words` is a multiple of four.
inline void transpose(const void* source, int64_t height, int64_t words, void* target) {
  const auto* from = static_cast<const Word*>(source);
  auto* to = static_cast<Word*>(target);
  const int64_t whole = height / 4 * 4;
  for (int64_t r = 0; r < whole; r += 4) {
    for (int64_t k = 0; k < words; k += 4) {
      const auto* at = reinterpret_cast<const Four*>(from + r * words + k);
      const int64_t row = words / 4;
      const Four low = pick<0, 4, 1, 5>(at[0], at[row]), high = pick<2, 6, 3, 7>(at[0], at[row]);
      const Four next_low = pick<0, 4, 1, 5>(at[2 * row], at[3 * row]);
      const Four next_high = pick<2, 6, 3, 7>(at[2 * row], at[3 * row]);
      Word* out = to + k * height + r;
      *reinterpret_cast<Four*>(out) = pick<0, 1, 4, 5>(low, next_low);
      *reinterpret_cast<Four*>(out + height) = pick<2, 3, 6, 7>(low, next_low);
      *reinterpret_cast<Four*>(out + 2 * height) = pick<0, 1, 4, 5>(high, next_high);
      *reinterpret_cast<Four*>(out + 3 * height) = pick<2, 3, 6, 7>(high, next_high);
    }
  }
  for (int64_t r = whole; r < height; ++r) {
    for (int64_t k = 0; k < words; ++k) to[k * height + r] = from[r * words + k];
  }
}

// Slot of the i-th key that a query sees, in the order of positions.
inline int64_t slot_of(const Visible& visible, int64_t i) {
  return i < visible.contiguous ? i : visible.extra[i - visible.contiguous];
}

}  // namespace
}  // namespace agentspec
