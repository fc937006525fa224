// The likeliest of many tokens.
namespace agentspec {
namespace {

// Numbers that are looked at one by one only when one of them is high enough.
constexpr int64_t kLookBlock = 4 * kLanes;

// The sum of e^(logit - peak).
inline float exponential_sum(const float* logits, int64_t length, float peak) {
  Vector sums{};
  int64_t i = 0;
  for (; i + kLanes <= length; i += kLanes) sums += exponential(load(logits + i) - peak);
  float sum = lane_sum(sums);
  for (; i < length; ++i) sum += exponential(broadcast(logits[i] - peak))[0];
  return sum;
}

void likeliest(const float* logits, int64_t length, int64_t count, int64_t* places, float* probs) {
  // `probs` holds logits until all are known; of equals the first is kept.
  int64_t found = 0;
  const auto look = [&](int64_t place) {
    const float logit = logits[place];
    if (found == count && !(logit > probs[count - 1])) return;
    int64_t at = found < count ? found++ : count - 1;
    for (; at > 0 && probs[at - 1] < logit; --at) {
      probs[at] = probs[at - 1];
      places[at] = places[at - 1];
    }
    probs[at] = logit;
    places[at] = place;
  };
  int64_t i = 0;
  for (; i + kLookBlock <= length; i += kLookBlock) {
    Vector peaks = load(logits + i);
    for (int64_t j = kLanes; j < kLookBlock; j += kLanes) peaks = maximum(peaks, load(logits + i + j));
    if (found == count && !(highest_lane(peaks) > probs[count - 1])) continue;
    for (int64_t j = 0; j < kLookBlock; ++j) look(i + j);
  }
  for (; i < length; ++i) look(i);
  const float peak = probs[0];
  const float share = 1.0f / exponential_sum(logits, length, peak);
  for (int64_t rank = 0; rank < count; ++rank) probs[rank] = exponential(broadcast(probs[rank] - peak))[0] * share;
}

}  // namespace
}  // namespace agentspec
