#include "ranker.hpp"

#include <cstring>

// Compiled for wider registers too where the loader can choose among versions of a function.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define AGENTSPEC_WIDE __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define AGENTSPEC_WIDE
#endif

namespace agentspec {
namespace {

template <class Table>
Table exponentials(Table table) {
  for (auto& row : table) {
    if constexpr (std::is_same_v<std::decay_t<decltype(row)>, float>) {
      row = std::exp(row);
    } else {
      for (float& value : row) value = std::exp(value);
    }
  }
  return table;
}

// Sixteen hidden units side by side, whatever the width of the machine's registers.
using Units = float __attribute__((vector_size(64)));
constexpr int kUnits = sizeof(Units) / sizeof(float);
static_assert(kHidden == 2 * kUnits);

[[gnu::always_inline]] inline Units load(const float* values) {
  Units units;
  std::memcpy(&units, values, sizeof(units));
  return units;
}

struct HiddenUnits {
  Units low, high;

  [[gnu::always_inline]] void add(float feature, const std::array<float, kHidden>& weights) {
    low += feature * load(weights.data());
    high += feature * load(weights.data() + kUnits);
  }
};

// What features [kFirst, kLast) add to the hidden units. Zeros are multiplied too: to skip them costs mispredicted
// branches. Every second feature adds up separately, so that additions do not wait for each other.
template <int kFirst, int kLast>
[[gnu::always_inline]] inline HiddenUnits sum_features(const RankerWeights& weights, const Features& features) {
  HiddenUnits one{}, other{};
  for (int i = kFirst; i + 1 < kLast; i += 2) {
    one.add(features[i], weights.hidden[i]);
    other.add(features[i + 1], weights.hidden[i + 1]);
  }
  if constexpr ((kLast - kFirst) % 2 == 1) one.add(features[kLast - 1], weights.hidden[kLast - 1]);
  return {one.low + other.low, one.high + other.high};
}

[[gnu::always_inline]] inline float sum_lanes(Units units) {
  std::array<float, kUnits> lanes;
  std::memcpy(lanes.data(), &units, sizeof(units));
  for (int width = kUnits / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

AGENTSPEC_WIDE void node_units(const RankerWeights& weights, const Features& features, Ranker::Hidden& hidden) {
  const HiddenUnits sum = sum_features<0, kNodeFeatures>(weights, features);
  const Units low = sum.low + load(weights.hidden_bias.data());
  const Units high = sum.high + load(weights.hidden_bias.data() + kUnits);
  std::memcpy(hidden.data(), &low, sizeof(low));
  std::memcpy(hidden.data() + kUnits, &high, sizeof(high));
}

AGENTSPEC_WIDE float output_unit(const RankerWeights& weights, const Ranker::Hidden& node_part,
                                 const Features& features) {
  const HiddenUnits sum = sum_features<kNodeFeatures, kFeatures>(weights, features);
  const Units low = sum.low + load(node_part.data());
  const Units high = sum.high + load(node_part.data() + kUnits);
  const Units zero{};
  return weights.output_bias + sum_lanes((low > zero ? low : zero) * load(weights.output.data()) +
                                         (high > zero ? high : zero) * load(weights.output.data() + kUnits));
}

}  // namespace

Ranker::Ranker(const RankerWeights& weights)
    : weights_(weights),
      origin_match_(exponentials(weights.origin_match)),
      relation_match_(exponentials(weights.relation_match)),
      recency_(exponentials(weights.recency)),
      none_(exponentials(weights.none)) {}

Ranker::Hidden Ranker::node_part(const Features& features) const {
  Hidden hidden;
  node_units(weights_, features, hidden);
  return hidden;
}

float Ranker::log_odds(const Hidden& node_part, const Features& features) const {
  return output_unit(weights_, node_part, features);
}

}  // namespace agentspec
