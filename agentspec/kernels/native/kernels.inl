// The kernels' source, compiled once for each instruction set. The including file defines
//   AGENTSPEC_LANES        floats in a vector,
//   AGENTSPEC_NAME         the instruction set's name,
//   AGENTSPEC_TABLES       name of the function that returns this set's table,
// and is compiled with the flags of that instruction set. Nothing here may have external linkage but that function,
// and no inline function of a shared header may be called: the linker would keep one copy of it for all sets.
#include "kernels.hpp"

#include <initializer_list>

#if defined(__AVX512BF16__) || defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

// Each uses what those before it define.
#include "vectors.inl"
#include "by_rows.inl"
#include "tiles.inl"
#include "products.inl"
#include "bytes.inl"
#include "attention_floats.inl"
#include "attention_pairs.inl"
#include "attention.inl"
#include "likeliest.inl"

namespace agentspec {
namespace {

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

template <class Weight>
constexpr const Products* integer_products() {
#if defined(__AVX512VNNI__)
  return &kByteProducts<typename Activation<Weight>::Type>;
#else
  return nullptr;
#endif
}

template <class Weight>
constexpr Kernels table(Element element) {
  return {AGENTSPEC_NAME,
          element,
          static_cast<int>(sizeof(typename Activation<Weight>::Type)),
          products<Weight>(),
          integer_products<Weight>(),
          activate<Weight>,
          rms_norm<Weight>,
          rms_norm_inplace,
          rotate,
          store<Weight>,
          attend<Weight>,
          kScoreRows,
          likeliest};
}

constexpr Kernels kFloat32Table = table<float>(Element::kFloat32);
constexpr Kernels kBfloat16Table = table<Bfloat16>(Element::kBfloat16);

}  // namespace

const Kernels& AGENTSPEC_TABLES(Element element) {
  return element == Element::kFloat32 ? kFloat32Table : kBfloat16Table;
}

}  // namespace agentspec
