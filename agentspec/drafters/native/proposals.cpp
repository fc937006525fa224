#include "proposals.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>

namespace agentspec {
namespace {

constexpr std::size_t kMaxCandidates = 900;  // per node; fewer than the slots of assign_pools
constexpr std::size_t kMaxProposals = 16;   // pooled tokens per node; a wider choice is never worth verifying
constexpr float kNegligibleShare = 0.003f;  // pools below this share of the weight are not ranked
constexpr float kLargestLift = 16;          // the network hardly ever gives a token more than this times its share

float log_of(float weight) { return std::log(std::max(weight, 1e-12f)); }
float sigmoid(float value) { return 1.0f / (1.0f + std::exp(-value)); }

// log2(1 + count), from a table where it is small.
float log_count(std::int64_t count) {
  static const auto kTable = [] {
    std::array<float, 1024> table{};
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = std::log2(1.0f + static_cast<float>(i));
    return table;
  }();
  return count < static_cast<std::int64_t>(kTable.size()) ? kTable[count] : std::log2(1.0f + static_cast<float>(count));
}

bool has(const Proposal& proposal, Relation relation) {
  return (proposal.relations >> static_cast<int>(relation) & 1u) != 0;
}

// Fills the features of a node, the first kNodeFeatures.
void describe_node(const Totals& all, const Sources& sources, const Situation& situation, const NodeView& node,
                   Features& f) {
  int i = 0;
  f[i++] = std::max(log_of(all.none) - all.log_whole, -8.0f) / 4;
  f[i++] = log_count(all.longest) / 5;
  f[i++] = log_count(all.candidates) / 5;
  f[i++] = log_count(all.distinct) / 5;
  f[i++] = log_count(node.depth) / 5;
  f[i++] = situation.fast_rate;
  f[i++] = situation.slow_rate;
  f[i++] = log_count(situation.copied) / 8;
  f[i++] = log_count(situation.since_left) / 8;
  f[i++] = log_count(situation.output_length) / 10;
  f[i++] = log_count(sources.frequency(node.last)) / 8;
  f[i++] = node.depth == 0 ? 1.0f : 0.0f;
  f[i++] = all.longest < 3 ? 1.0f : 0.0f;
  f[i++] = node.zone == Zone::kSearched ? 1.0f : 0.0f;
  f[i++] = node.zone == Zone::kReplacement ? 1.0f : 0.0f;
  const auto in_zone = static_cast<std::int64_t>(sources.request().size()) - sources.zone_start() + node.depth;
  f[i++] = node.zone == Zone::kNone ? 0.0f : log_count(in_zone) / 8;
  for (int kind = 1; kind < kTokenClasses; ++kind) {
    f[i++] = static_cast<int>(sources.token_class(node.last)) == kind ? 1.0f : 0.0f;
  }
  assert(i == kNodeFeatures);
}

// Fills the features of one proposal, those from kNodeFeatures on.
void describe_token(const Proposal& p, const Totals& all, float best_other, const Sources& sources,
                    const TokenNotes& notes, Token last, Features& f) {
  const float log_weight = log_of(p.weight);
  const float others = all.weight - p.weight;
  int i = kNodeFeatures;
  f[i++] = std::max(log_weight - all.log_whole, -8.0f) / 4;
  f[i++] = std::max(log_weight - all.log_weight, -8.0f) / 4;
  f[i++] = others > 0 ? std::max(log_of(others) - all.log_whole, -8.0f) / 4 : -8.0f / 4;
  f[i++] = best_other > 0 ? std::clamp(log_weight - log_of(best_other), -8.0f, 8.0f) / 4 : 8.0f / 4;
  f[i++] = p.count > 1 ? std::max(log_of(p.best_weight) - log_weight, -4.0f) / 4 : 0.0f;
  f[i++] = log_count(p.longest) / 5;
  f[i++] = p.longest == all.longest ? 1.0f : 0.0f;
  f[i++] = log_count(p.longest == all.longest ? all.second_longest : all.longest) / 5;
  f[i++] = log_count(p.agreeing) / 5;
  f[i++] = p.longest == all.longest ? static_cast<float>(p.agreeing) / static_cast<float>(all.agreeing) : 0.0f;
  f[i++] = log_count(p.count) / 5;
  f[i++] = log_count(sources.frequency(p.token)) / 8;
  f[i++] = p.token == last ? 1.0f : 0.0f;
  f[i++] = p.has_newest ? 1.0f : 0.0f;
  const TokenNote note = notes.of(p.token);
  f[i++] = std::min(note.refuted, 4.0f) / 2;
  f[i++] = log_count(static_cast<std::int64_t>(note.corrected)) / 4;
  std::fill_n(f.begin() + i, kOrigins, 0.0f);
  const float share = 1 / p.weight;
  for (int origin = 0; origin < kOrigins; ++origin) {
    f[i + static_cast<int>(ranked_as(static_cast<Origin>(origin)))] += p.by_origin[origin] * share;
  }
  i += kOrigins;
  for (const Relation relation : {Relation::kFollows, Relation::kResumes, Relation::kJustAhead, Relation::kAhead,
                                  Relation::kJustBehind}) {
    f[i++] = has(p, relation) ? 1.0f : 0.0f;
  }
  for (int kind = 1; kind < kTokenClasses; ++kind) {
    f[i++] = static_cast<int>(sources.token_class(p.token)) == kind ? 1.0f : 0.0f;
  }
  assert(i == kFeatures);
}

// Sorts candidates into pools: the pool of each candidate goes to `pool_of`, proposals come in the order of first sight.
void assign_pools(std::span<const Candidate> candidates, std::vector<Proposal>& proposals,
                  std::vector<std::uint16_t>& pool_of) {
  constexpr std::size_t kMostSlots = std::bit_ceil(kMaxCandidates + 1);  // open addressing
  constexpr std::uint16_t kFree = 0xffff;
  std::array<std::uint16_t, kMostSlots> slots;
  const std::size_t used = std::min(std::bit_ceil(2 * candidates.size()), kMostSlots);
  std::fill_n(slots.begin(), used, kFree);
  pool_of.clear();
  for (const Candidate& candidate : candidates) {
    std::size_t slot = (static_cast<std::uint32_t>(candidate.next) * 2654435761u >> 16) & (used - 1);
    while (slots[slot] != kFree && proposals[slots[slot]].token != candidate.next) slot = (slot + 1) & (used - 1);
    if (slots[slot] == kFree) {
      slots[slot] = static_cast<std::uint16_t>(proposals.size());
      proposals.push_back({.token = candidate.next});
    }
    pool_of.push_back(slots[slot]);
  }
}

void add_candidate(Proposal& p, const Candidate& candidate) {
  ++p.count;
  p.weight += candidate.weight;
  p.best_weight = std::max(p.best_weight, candidate.weight);
  p.by_origin[static_cast<int>(candidate.origin)] += candidate.weight;
  p.relations |= 1u << static_cast<int>(candidate.relation);
  if (candidate.match > p.longest) {
    p.longest = candidate.match;
    p.agreeing = 0;
  }
  if (candidate.match == p.longest) ++p.agreeing;
}

}  // namespace

void Pooler::pool(std::span<Candidate> candidates, const Sources& sources, const Situation& situation,
                  const NodeView& node, std::vector<Candidate>& grouped, std::vector<Features>* features) {
  proposals_.clear();
  candidates = candidates.first(std::min(candidates.size(), kMaxCandidates));
  if (candidates.empty()) return;
  Totals all;
  all.candidates = static_cast<int>(candidates.size());
  assign_pools(candidates, proposals_, pool_of_);
  const Candidate* newest = nullptr;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Candidate& candidate = candidates[i];
    candidate.weight = ranker_.weight(candidate);
    all.weight += candidate.weight;
    all.longest = std::max<int>(all.longest, candidate.match);
    if (candidate.text == kRequestText && (!newest || candidate.position > newest->position)) newest = &candidate;
    add_candidate(proposals_[pool_of_[i]], candidate);
  }
  all.none = ranker_.none_weight(all.longest);
  auto place = static_cast<std::uint32_t>(grouped.size());
  grouped.resize(grouped.size() + candidates.size());
  for (Proposal& p : proposals_) {
    p.first = place;
    place += p.count;
    p.count = 0;  // counted again while they are placed
  }
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Proposal& p = proposals_[pool_of_[i]];
    grouped[p.first + p.count++] = candidates[i];
  }
  if (newest) proposals_[pool_of_[static_cast<std::size_t>(newest - candidates.data())]].has_newest = true;
  all.distinct = static_cast<int>(proposals_.size());
  const Proposal* winner = &proposals_.front();
  for (const Proposal& p : proposals_) {
    if (p.longest > winner->longest) winner = &p;
    if (p.longest == all.longest) all.agreeing += p.agreeing;
  }
  for (const Proposal& p : proposals_) {
    if (&p != winner) all.second_longest = std::max(all.second_longest, p.longest);
  }
  all.log_whole = log_of(all.weight + all.none);
  all.log_weight = log_of(all.weight);
  keep_heaviest(kNegligibleShare * (all.weight + all.none));
  rank(all, sources, situation, node, features);
}

void Pooler::keep_heaviest(float negligible) {
  const auto heavier = [](const Proposal& a, const Proposal& b) { return a.weight > b.weight; };
  if (proposals_.size() > kMaxProposals) {
    std::nth_element(proposals_.begin(), proposals_.begin() + kMaxProposals, proposals_.end(), heavier);
    proposals_.resize(kMaxProposals);
  }
  std::sort(proposals_.begin(), proposals_.end(), heavier);
  while (proposals_.size() > 1 && proposals_.back().weight < negligible) proposals_.pop_back();
}

void Pooler::rank(const Totals& all, const Sources& sources, const Situation& situation, const NodeView& node,
                  std::vector<Features>* features) {
  Features row;
  describe_node(all, sources, situation, node, row);
  alignas(64) Ranker::Hidden of_node;
  ranker_.node_part(row, of_node);
  const float whole = all.weight + all.none;
  const auto least = features ? 0.0f : node.least_probability * whole / kLargestLift;
  float sum = 0, light = 0;  // light: most that those may have which are not ranked
  for (const Proposal& p : proposals_) light += p.weight < least ? kLargestLift * p.weight / whole : 0.0f;
  for (std::size_t i = 0; i < proposals_.size(); ++i) {
    Proposal& p = proposals_[i];  // heavier ones come first
    // Light ones are ranked too where the sum may exceed 1: a probability must not depend on the budget.
    if (p.weight < least && sum + light <= 1) break;
    const float best_other = i > 0 ? proposals_[0].weight : proposals_.size() > 1 ? proposals_[1].weight : 0.0f;
    describe_token(p, all, best_other, sources, situation.notes, node.last, row);
    if (features) features->push_back(row);
    p.probability = sigmoid(ranker_.log_odds(of_node, row) + situation.bias);
    sum += p.probability;
  }
  if (sum > 1) {
    for (Proposal& p : proposals_) p.probability /= sum;
  }
}

}  // namespace agentspec
