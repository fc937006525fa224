// How likely each proposed token is: learnt weights over candidates, then a small network over tokens.
#pragma once

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

// 0 to 5: the length itself; then 6-7, 8-11, 12-15, 16-23, 24-31, and all from 32 on.
inline int match_bucket(int match) {
  if (match < 6) return match;
  if (match < 8) return 6;
  if (match < 12) return 7;
  if (match < 16) return 8;
  if (match < 24) return 9;
  return match < 32 ? 10 : 11;
}

// All learnt numbers; agentspec/drafters/weights.py reads them from the package's data file.
struct RankerWeights {
  // A candidate weighs exp(origin_match + relation_match + recency); "none of these" weighs exp(none).
  std::array<std::array<float, kMatchBuckets>, kOrigins> origin_match{};
  std::array<std::array<float, kMatchBuckets>, kRelations> relation_match{};
  std::array<std::array<float, kRecencies>, kOrigins> recency{};
  std::array<float, kMatchBuckets> none{};  // by the longest match among the candidates
  // A token's log-odds: output . relu(hidden . features + hidden_bias) + output_bias.
  std::array<std::array<float, kHidden>, kFeatures> hidden{};
  std::array<float, kHidden> hidden_bias{};
  std::array<float, kHidden> output{};
  float output_bias = 0;
};

using Features = std::array<float, kFeatures>;

class Ranker {
 public:
  explicit Ranker(const RankerWeights& weights);

  float weight(const Candidate& candidate) const {
    const int bucket = match_bucket(candidate.match);
    const int origin = static_cast<int>(ranked_as(candidate.origin));
    return origin_match_[origin][bucket] * relation_match_[static_cast<int>(candidate.relation)][bucket] *
           recency_[origin][candidate.recency];
  }
  float none_weight(int longest_match) const { return none_[match_bucket(longest_match)]; }

  using Hidden = std::array<float, kHidden>;

  // What the node's features add to the hidden units.
  Hidden node_part(const Features& features) const;
  // Log-odds that the token described by the other features comes next.
  float log_odds(const Hidden& node_part, const Features& features) const;

 private:
  RankerWeights weights_;
  decltype(RankerWeights::origin_match) origin_match_;      // the exponentials of the same names in weights_
  decltype(RankerWeights::relation_match) relation_match_;
  decltype(RankerWeights::recency) recency_;
  decltype(RankerWeights::none) none_;
};

}  // namespace agentspec
