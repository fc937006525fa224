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

}  // namespace

Ranker::Ranker(const RankerWeights& weights)
    : weights_(weights),
      origin_match_(exponentials(weights.origin_match)),
      relation_match_(exponentials(weights.relation_match)),
      recency_(exponentials(weights.recency)),
      none_(exponentials(weights.none)) {}

float Ranker::log_odds(const Features& features) const {
  std::array<float, kHidden> hidden = weights_.hidden_bias;
  for (int i = 0; i < kFeatures; ++i) {
    const float feature = features[i];
    for (int j = 0; j < kHidden; ++j) hidden[j] += feature * weights_.hidden[i][j];
  }
  float sum = weights_.output_bias;
  for (int j = 0; j < kHidden; ++j) sum += std::max(hidden[j], 0.0f) * weights_.output[j];
  return sum;
}

}  // namespace agentspec
