// How likely each proposed token is: learnt weights over candidates, then a small network over tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "candidate.hpp"

namespace agentspec {

inline constexpr int kMatchBuckets = 12;
inline constexpr int kFeatures = 57;
inline constexpr int kNodeFeatures = 22;  // the first ones, which all tokens proposed at a node share
inline constexpr int kHidden = 32;

// By match length: 0 to 5: the length itself; then 6-7, 8-11, 12-15, 16-23, 24-31, and all from 32 on.
inline constexpr auto kMatchBucket = [] {
  std::array<std::uint8_t, kMaxMatch + 1> buckets{};
  for (int match = 0; match <= kMaxMatch; ++match) {
    int bucket = std::min(match, 5);
    for (const int start : {6, 8, 12, 16, 24, 32}) bucket += match >= start;
    buckets[static_cast<std::size_t>(match)] = static_cast<std::uint8_t>(bucket);
  }
  return buckets;
}();
inline int match_bucket(int match) { return kMatchBucket[static_cast<std::size_t>(match)]; }

// All learnt numbers; agentspec/drafters/weights.py reads them from the package's data file.
struct RankerWeights {
  // A candidate weighs exp(origin_match + relation_match + recency); "none of these" weighs exp(none).
  std::array<std::array<float, kMatchBuckets>, kOrigins> origin_match{};
  std::array<std::array<float, kMatchBuckets>, kRelations> relation_match{};
  std::array<std::array<float, kRecencies>, kOrigins> recency{};
  std::array<float, kMatchBuckets> none{};  // by the longest match among the candidates
  // A token's log-odds: output . relu(hidden . features + hidden_bias) + output_bias.
  alignas(64) std::array<std::array<float, kHidden>, kFeatures> hidden{};  // no row crosses a cache line
  alignas(64) std::array<float, kHidden> hidden_bias{};
  alignas(64) std::array<float, kHidden> output{};
  float output_bias = 0;
};

using Features = std::array<float, kFeatures>;

class Ranker {
 public:
  // `wide`: with wider registers, where the processor has them.
  explicit Ranker(const RankerWeights& weights, bool wide = true);

  float weight(const Candidate& candidate) const {
    return weights_of_candidates_[static_cast<int>(candidate.origin)][static_cast<int>(candidate.relation)]
                                 [candidate.recency][match_bucket(candidate.match)];
  }
  float none_weight(int longest_match) const { return none_[match_bucket(longest_match)]; }

  using Hidden = std::array<float, kHidden>;

  // What the node's features add to the hidden units.
  void node_part(const Features& features, Hidden& hidden) const { node_part_(weights_, features, hidden); }
  // Log-odds that the token described by the other features comes next.
  float log_odds(const Hidden& node_part, const Features& features) const {
    return log_odds_(weights_, node_part, features);
  }

 private:
  RankerWeights weights_;
  // What a candidate weighs, by origin, relation, recency and match bucket.
  std::array<std::array<std::array<std::array<float, kMatchBuckets>, kRecencies>, kRelations>, kOrigins>
      weights_of_candidates_;
  std::array<float, kMatchBuckets> none_;  // the same for none of them
  void (*node_part_)(const RankerWeights&, const Features&, Hidden&);  // for this processor
  float (*log_odds_)(const RankerWeights&, const Hidden&, const Features&);
};

}  // namespace agentspec
