#include "ranker.hpp"

#include <cmath>
#include <cstring>

// Compiled for wider registers too, which are used where the processor has them.
#if defined(__x86_64__)
#define AGENTSPEC_AVX2 __attribute__((target("avx2,fma")))
#endif

// Vectors never leave inlined functions, so how they would be passed does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace agentspec {
namespace {

// `kLanes` hidden units side by side in one register.
template <int kLanes>
struct Register {
  using Lanes [[gnu::vector_size(kLanes * sizeof(float))]] = float;
};

template <int kLanes>
using Lanes = typename Register<kLanes>::Lanes;

template <int kLanes>
[[gnu::always_inline]] inline float sum(const Lanes<kLanes>& lanes) {
  if constexpr (kLanes == 1) {
    return lanes[0];
  } else {
    Lanes<kLanes / 2> low, high;
    std::memcpy(&low, &lanes, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&lanes) + sizeof(low), sizeof(high));
    return sum<kLanes / 2>(low + high);
  }
}

// The hidden layer on registers of `kLanes` units.
template <int kLanes>
struct Layer {
  static constexpr int kRegisters = kHidden / kLanes;
  using Units = std::array<Lanes<kLanes>, kRegisters>;

  [[gnu::always_inline]] static Lanes<kLanes> load(const Ranker::Hidden& values, int index) {
    Lanes<kLanes> lanes;
    std::memcpy(&lanes, values.data() + index * kLanes, sizeof(lanes));
    return lanes;
  }

  [[gnu::always_inline]] static void add(float feature, const Ranker::Hidden& weights, Units& units) {
    for (int i = 0; i < kRegisters; ++i) units[i] += feature * load(weights, i);
  }

  // Adds what features [kFirst, kLast) contribute. Zeros are multiplied too: to skip them costs mispredicted branches.
  // Every second feature adds up separately, so that additions do not wait for each other.
  template <int kFirst, int kLast>
  [[gnu::always_inline]] static void add(const RankerWeights& weights, const Features& features, Units& units) {
    Units other{};
    for (int i = kFirst; i + 1 < kLast; i += 2) {
      add(features[i], weights.hidden[i], units);
      add(features[i + 1], weights.hidden[i + 1], other);
    }
    if constexpr ((kLast - kFirst) % 2 == 1) add(features[kLast - 1], weights.hidden[kLast - 1], units);
    for (int i = 0; i < kRegisters; ++i) units[i] += other[i];
  }

  [[gnu::always_inline]] static void node_part(const RankerWeights& weights, const Features& features,
                                               Ranker::Hidden& hidden) {
    Units units;
    for (int i = 0; i < kRegisters; ++i) units[i] = load(weights.hidden_bias, i);
    add<0, kNodeFeatures>(weights, features, units);
    for (int i = 0; i < kRegisters; ++i) std::memcpy(hidden.data() + i * kLanes, &units[i], sizeof(units[i]));
  }

  [[gnu::always_inline]] static float log_odds(const RankerWeights& weights, const Ranker::Hidden& node_part,
                                               const Features& features) {
    Units units;
    for (int i = 0; i < kRegisters; ++i) units[i] = load(node_part, i);
    add<kNodeFeatures, kFeatures>(weights, features, units);
    const Lanes<kLanes> zero{};
    Lanes<kLanes> total{};
    for (int i = 0; i < kRegisters; ++i) total += (units[i] > zero ? units[i] : zero) * load(weights.output, i);
    return weights.output_bias + sum<kLanes>(total);
  }
};

void node_part(const RankerWeights& weights, const Features& features, Ranker::Hidden& hidden) {
  Layer<4>::node_part(weights, features, hidden);
}
float log_odds(const RankerWeights& weights, const Ranker::Hidden& node_part, const Features& features) {
  return Layer<4>::log_odds(weights, node_part, features);
}
#ifdef AGENTSPEC_AVX2
AGENTSPEC_AVX2 void node_part_avx2(const RankerWeights& weights, const Features& features, Ranker::Hidden& hidden) {
  Layer<8>::node_part(weights, features, hidden);
}
AGENTSPEC_AVX2 float log_odds_avx2(const RankerWeights& weights, const Ranker::Hidden& node_part,
                                   const Features& features) {
  return Layer<8>::log_odds(weights, node_part, features);
}
#endif

}  // namespace

Ranker::Ranker(const RankerWeights& weights, [[maybe_unused]] bool wide)
    : weights_(weights), node_part_(&agentspec::node_part), log_odds_(&agentspec::log_odds) {
  for (int bucket = 0; bucket < kMatchBuckets; ++bucket) {
    none_[bucket] = std::exp(weights.none[bucket]);
    for (int origin = 0; origin < kOrigins; ++origin) {
      const auto ranked = static_cast<std::size_t>(ranked_as(static_cast<Origin>(origin)));
      for (int relation = 0; relation < kRelations; ++relation) {
        for (int recency = 0; recency < kRecencies; ++recency) {
          weights_of_candidates_[origin][relation][recency][bucket] =
              std::exp(weights.origin_match[ranked][bucket]) * std::exp(weights.relation_match[relation][bucket]) *
              std::exp(weights.recency[ranked][recency]);
        }
      }
    }
  }
#ifdef AGENTSPEC_AVX2
  if (wide && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    node_part_ = &node_part_avx2;
    log_odds_ = &log_odds_avx2;
  }
#endif
}

}  // namespace agentspec
