#include "proposals.hpp"

#include <algorithm>
#include <cmath>

namespace agentspec {
namespace {

constexpr std::size_t kMaxProposals = 24;   // pooled tokens per node; a wider choice is never worth verifying
constexpr float kNegligibleShare = 0.002f;  // pools below this share of the weight are not ranked

float log_ratio(float part, float whole) { return std::log(std::max(part, 1e-12f) / std::max(whole, 1e-12f)); }
float log_count(float count) { return std::log2(1.0f + count); }
float sigmoid(float value) { return 1.0f / (1.0f + std::exp(-value)); }

// What is common to all proposals of a node.
struct Totals {
  float weight = 0;
  float none = 0;
  int longest = 0;
  int candidates = 0;
  int distinct = 0;
};

bool has(const Proposal& proposal, Relation relation) {
  return (proposal.relations >> static_cast<int>(relation) & 1u) != 0;
}

Features describe(const Proposal& p, const Totals& all, float best_other, const Sources& sources,
                  const Situation& situation, Token last, int depth) {
  const float whole = all.weight + all.none;
  Features f{};
  int i = 0;
  f[i++] = std::max(log_ratio(p.weight, whole), -8.0f) / 4;
  f[i++] = std::max(log_ratio(p.weight, all.weight), -8.0f) / 4;
  f[i++] = std::max(log_ratio(all.weight - p.weight, whole), -8.0f) / 4;
  f[i++] = std::max(log_ratio(all.none, whole), -8.0f) / 4;
  f[i++] = std::clamp(log_ratio(p.weight, best_other), -8.0f, 8.0f) / 4;
  f[i++] = std::max(log_ratio(p.best_weight, p.weight), -4.0f) / 4;
  f[i++] = log_count(static_cast<float>(p.longest)) / 5;
  f[i++] = log_count(static_cast<float>(all.longest)) / 5;
  f[i++] = p.longest == all.longest ? 1.0f : 0.0f;
  f[i++] = log_count(static_cast<float>(p.agreeing)) / 5;
  f[i++] = log_count(static_cast<float>(p.count)) / 5;
  f[i++] = log_count(static_cast<float>(all.candidates)) / 5;
  f[i++] = log_count(static_cast<float>(all.distinct)) / 5;
  f[i++] = log_count(static_cast<float>(depth)) / 5;
  f[i++] = situation.fast_rate;
  f[i++] = situation.slow_rate;
  f[i++] = log_count(static_cast<float>(situation.copied)) / 8;
  f[i++] = log_count(static_cast<float>(situation.since_left)) / 8;
  f[i++] = log_count(static_cast<float>(situation.output_length)) / 10;
  f[i++] = log_count(static_cast<float>(sources.frequency(p.token))) / 8;
  f[i++] = log_count(static_cast<float>(sources.frequency(last))) / 8;
  f[i++] = p.token == last ? 1.0f : 0.0f;
  f[i++] = p.has_newest ? 1.0f : 0.0f;
  for (const float weight : p.by_origin) f[i++] = weight / p.weight;
  for (const Relation relation : {Relation::kFollows, Relation::kResumes, Relation::kJustAhead, Relation::kAhead,
                                  Relation::kJustBehind}) {
    f[i++] = has(p, relation) ? 1.0f : 0.0f;
  }
  f[i++] = depth == 0 ? 1.0f : 0.0f;
  f[i++] = all.longest < 3 ? 1.0f : 0.0f;
  static_assert(kFeatures == 37);
  return f;
}

}  // namespace

void pool(std::span<Candidate> candidates, const Ranker& ranker, const Sources& sources, const Situation& situation,
          Token last, int depth, std::vector<Candidate>& grouped, std::vector<Proposal>& proposals,
          std::vector<Features>* features) {
  proposals.clear();
  if (candidates.empty()) return;
  Totals all;
  all.candidates = static_cast<int>(candidates.size());
  const Candidate* newest = nullptr;
  for (Candidate& candidate : candidates) {
    candidate.weight = ranker.weight(candidate);
    all.weight += candidate.weight;
    all.longest = std::max<int>(all.longest, candidate.match);
    if (candidate.text == kRequestText && (!newest || candidate.position > newest->position)) newest = &candidate;
  }
  all.none = ranker.none_weight(all.longest);
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.next != b.next ? a.next < b.next : a.weight > b.weight;
  });
  const Token newest_token = newest ? newest->next : -1;
  const auto base = static_cast<std::uint32_t>(grouped.size());
  grouped.insert(grouped.end(), candidates.begin(), candidates.end());
  for (std::uint32_t first = 0; first < candidates.size();) {
    Proposal p{.token = candidates[first].next, .first = base + first, .count = 0, .weight = 0,
               .best_weight = candidates[first].weight, .longest = 0, .agreeing = 0, .by_origin = {}, .relations = 0,
               .has_newest = candidates[first].next == newest_token, .probability = 0};
    for (; first < candidates.size() && candidates[first].next == p.token; ++first) {
      const Candidate& candidate = candidates[first];
      ++p.count;
      p.weight += candidate.weight;
      p.by_origin[static_cast<int>(candidate.origin)] += candidate.weight;
      p.relations |= 1u << static_cast<int>(candidate.relation);
      if (candidate.match > p.longest) {
        p.longest = candidate.match;
        p.agreeing = 0;
      }
      if (candidate.match == p.longest) ++p.agreeing;
    }
    proposals.push_back(p);
  }
  all.distinct = static_cast<int>(proposals.size());
  std::sort(proposals.begin(), proposals.end(), [](const Proposal& a, const Proposal& b) { return a.weight > b.weight; });
  if (proposals.size() > kMaxProposals) proposals.resize(kMaxProposals);
  while (proposals.back().weight < kNegligibleShare * (all.weight + all.none) && proposals.size() > 1) {
    proposals.pop_back();
  }
  float sum = 0;
  for (std::size_t i = 0; i < proposals.size(); ++i) {
    Proposal& p = proposals[i];
    const float best_other = i > 0 ? proposals[0].weight : proposals.size() > 1 ? proposals[1].weight : 0.0f;
    const Features row = describe(p, all, best_other, sources, situation, last, depth);
    if (features) features->push_back(row);
    p.probability = sigmoid(ranker.log_odds(row) + situation.bias);
    sum += p.probability;
  }
  if (sum > 1) {
    for (Proposal& p : proposals) p.probability /= sum;
  }
}

}  // namespace agentspec
