// How likely a token is where two drafters have spoken: the candidates of the texts, and an outside drafter's tree.
//
// Neither is aware of the other's evidence, and both are calibrated. The log-odds of a token are linear in the log-odds
// that each gives it, of what the texts leave to tokens that they do not hold, and of what the outside drafter leaves to
// tokens that it does not name. So a copy that the outside drafter does not expect is doubted, and a token that both
// expect is surer than either says.
#pragma once

#include <array>

namespace agentspec {

enum class Known : int { kByBoth, kByTexts, kByOther };

class Fusion {
 public:
  static constexpr int kCases = 3;  // see Known
  static constexpr int kTerms = 5;  // constant; log-odds by the texts, by the other, of what texts miss, of the rest
  using Weights = std::array<std::array<float, kTerms>, kCases>;

  static constexpr float kLeast = 1e-3f;      // probabilities are kept this far from 0 and 1
  static constexpr float kLeastLeft = 0.02f;  // likewise what is left over: it is known less exactly

  explicit Fusion(const Weights& weights) : weights_(weights) {}

  // What a drafter leaves to tokens that it does not name, as `probability` takes it.
  static float left_over(float named) { return log_odds(1 - named, kLeastLeft); }

  // Of a token; what a drafter that does not name it says of it is not looked at.
  float probability(Known known, float by_texts, float by_other, float missed, float rest) const;

  // A verdict on a token to which `probability` was given; corrects the constant of its case.
  void learn(Known known, float probability, bool hit);

 private:
  static float log_odds(float probability, float least);

  Weights weights_;
};

}  // namespace agentspec
