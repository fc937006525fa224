#include "ranker.hpp"

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

void add_features(const RankerWeights& weights, const Features& features, int first, int last,
                  Ranker::Hidden& hidden) {
  for (int i = first; i < last; ++i) {
    const float feature = features[i];
    if (feature == 0) continue;  // most flags are
    for (int j = 0; j < kHidden; ++j) hidden[j] += feature * weights.hidden[i][j];
  }
}

}  // namespace

Ranker::Ranker(const RankerWeights& weights)
    : weights_(weights),
      origin_match_(exponentials(weights.origin_match)),
      relation_match_(exponentials(weights.relation_match)),
      recency_(exponentials(weights.recency)),
      none_(exponentials(weights.none)) {}

Ranker::Hidden Ranker::node_part(const Features& features) const {
  Hidden hidden = weights_.hidden_bias;
  add_features(weights_, features, 0, kNodeFeatures, hidden);
  return hidden;
}

float Ranker::log_odds(const Hidden& node_part, const Features& features) const {
  Hidden hidden = node_part;
  add_features(weights_, features, kNodeFeatures, kFeatures, hidden);
  float sum = weights_.output_bias;
  for (int j = 0; j < kHidden; ++j) sum += std::max(hidden[j], 0.0f) * weights_.output[j];
  return sum;
}

}  // namespace agentspec
