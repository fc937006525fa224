#include "fusion.hpp"

#include <algorithm>
#include <cmath>

namespace agentspec {
namespace {

constexpr float kRate = 0.01f;  // step of the online correction; small, since the weights were learnt on many texts
constexpr float kMostCorrected = 8.0f;

}  // namespace

float Fusion::log_odds(float probability, float least) {
  const float clipped = std::clamp(probability, least, 1 - least);
  return std::log(clipped / (1 - clipped));
}

float Fusion::probability(Known known, float by_texts, float by_other, float missed, float rest) const {
  const std::array<float, kTerms>& w = weights_[static_cast<std::size_t>(known)];
  float odds = w[0] + w[3] * missed + w[4] * rest;
  if (known != Known::kByOther) odds += w[1] * log_odds(by_texts, kLeast);
  if (known != Known::kByTexts) odds += w[2] * log_odds(by_other, kLeast);
  return 1 / (1 + std::exp(-odds));
}

void Fusion::learn(Known known, float probability, bool hit) {
  float& constant = weights_[static_cast<std::size_t>(known)][0];
  constant = std::clamp(constant + kRate * ((hit ? 1.0f : 0.0f) - probability), -kMostCorrected, kMostCorrected);
}

}  // namespace agentspec
