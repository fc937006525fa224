#include "tree_builder.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace agentspec {
namespace {

constexpr LookupLimits kRootLookup{.request = 48, .extra = 24, .repository = 48, .extra_enough = 6, .enough = 12};
constexpr LookupLimits kInnerLookup{.request = 12, .extra = 6, .repository = 12, .extra_enough = 2, .enough = 4};
constexpr std::size_t kFewCandidates = 4;      // nodes with fewer look for more
constexpr int kMaxInnerLookups = 12;           // per tree
constexpr std::size_t kContextTokens = kMaxMatch;

Source main_source(const Proposal& proposal) {
  const auto heaviest = std::max_element(proposal.by_origin.begin(), proposal.by_origin.end());
  return kSourceOf[static_cast<std::size_t>(heaviest - proposal.by_origin.begin())];
}

// Plain steps that an accepted node at `depth` saves. The exponent was chosen on recorded edits: 1 would be right for
// one long copy, 0 where every step ends soon.
float value(int depth) {
  constexpr float kExponent = 0.75f;
  static const auto kTable = [] {
    std::array<float, 512> table{};
    for (std::size_t i = 0; i < table.size(); ++i) table[i] = std::pow(static_cast<float>(i), -kExponent);
    return table;
  }();
  const auto index = static_cast<std::size_t>(depth);
  return index < kTable.size() ? kTable[index] : std::pow(static_cast<float>(depth), -kExponent);
}

// What a node saves for each node that is wasted on it.
float rank_of(float path_probability, int depth) {
  constexpr float kLeastWaste = 1e-4f;  // no node is certain
  return path_probability * value(depth) / std::max(1 - path_probability, kLeastWaste);
}

// The rank from which on a node pays that adds `added` plain steps to the cost of the tree.
float least_rank_that_pays(float added) {
  return added < 1 ? added / (1 - added) : std::numeric_limits<float>::infinity();
}

// The path probability from which on a node at `depth` has this rank.
float probability_of(float rank, int depth) {
  const float odds = rank / value(depth);
  return std::isfinite(odds) ? odds / (1 + odds) : 1.0f;
}

// Entry n: the least that any later node adds to the cost of a tree of n nodes or more, in plain steps.
void least_increments(std::span<const float> cost, std::vector<float>& least) {
  least.assign(cost.size(), 0);
  float smallest = std::numeric_limits<float>::infinity();
  for (std::size_t n = cost.size(); n-- > 1;) {
    smallest = std::min(smallest, (cost[n] - cost[n - 1]) / cost[0]);
    least[n - 1] = std::max(smallest, 0.0f);
  }
}

}  // namespace

void TreeBuilder::start(const Sources& sources) {
  nodes_.clear();
  heap_.clear();
  chosen_.clear();
  place_.clear();
  candidates_.clear();
  grouped_.clear();
  judged_.clear();
  lookups_left_ = kMaxInnerLookups;
  const std::span<const Token> request = sources.request();
  sources.find(context_of(kRoot, sources), kRootLookup, candidates_);
  sources.add_expected(candidates_);
  if (!request.empty() && sources.may_echo(request.back())) {
    sources.add_echoes(context_of(kRoot, sources), candidates_);
  }
}

std::span<const Token> TreeBuilder::context_of(std::int32_t node, const Sources& sources) {
  const std::span<const Token> request = sources.request();
  if (node == kRoot) return request.last(std::min(request.size(), kContextTokens));
  const auto depth = static_cast<std::size_t>(nodes_[node].depth);
  const std::size_t drafted = std::min(depth, kContextTokens);
  const std::size_t committed = std::min(request.size(), kContextTokens - drafted);
  context_.resize(committed + drafted);
  std::copy(request.end() - static_cast<std::ptrdiff_t>(committed), request.end(), context_.begin());
  for (std::size_t i = context_.size(); i > committed; --i) {
    context_[i - 1] = nodes_[node].token;
    node = nodes_[node].parent;
  }
  return context_;
}

void TreeBuilder::look_after(std::int32_t node, const Sources& sources, const Situation& situation,
                             float min_path_prob, std::vector<Features>* features) {
  int depth = 0;
  float path = 1;
  Zone zone = sources.zone();
  Token last = sources.request().empty() ? -1 : sources.request().back();
  if (node != kRoot) {
    Node& parent = nodes_[node];
    if (parent.parent != kRoot) zone = nodes_[parent.parent].zone;
    depth = parent.depth;
    path = parent.path_probability;
    last = parent.token;
    candidates_.clear();
    for (std::uint32_t i = parent.first; i < parent.first + parent.count; ++i) {
      Candidate candidate = grouped_[i];
      if (sources.advance(candidate, zone)) candidates_.push_back(candidate);
    }
    if (candidates_.size() < kFewCandidates && lookups_left_ > 0) {
      --lookups_left_;
      const std::size_t known = candidates_.size();
      sources.find(context_of(node, sources), kInnerLookup, candidates_);
      const auto is_known = [&](const Candidate& found) {
        return std::any_of(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(known),
                           [&](const Candidate& other) {
                             return other.text == found.text && other.position == found.position;
                           });
      };
      candidates_.erase(std::remove_if(candidates_.begin() + static_cast<std::ptrdiff_t>(known), candidates_.end(), is_known),
                        candidates_.end());
    }
  }
  if (node != kRoot) {
    if (sources.may_echo(last)) {
      const std::size_t before = candidates_.size();
      sources.add_echoes(context_of(node, sources), candidates_);
      if (zone == Zone::kSearched && candidates_.size() > before) zone = Zone::kReplacement;
    }
    nodes_[node].zone = zone;
  }
  const float least = path > 0 ? min_path_prob / path : 0.0f;
  pooler_.pool(candidates_, sources, situation, {last, depth, zone, least}, grouped_, features);
}

void TreeBuilder::push(const Node& node) {
  heap_.push_back({rank_of(node.path_probability, node.depth), static_cast<std::int32_t>(nodes_.size())});
  std::push_heap(heap_.begin(), heap_.end());
  nodes_.push_back(node);
}

void TreeBuilder::push_children(std::int32_t node, const BudgetBounds& bounds, const ExtraTree& extra) {
  const int depth = node == kRoot ? 1 : nodes_[node].depth + 1;
  if (depth > bounds.max_depth) return;
  const float path = node == kRoot ? 1.0f : nodes_[node].path_probability;
  const std::int32_t extra_node = node == kRoot ? kRoot : nodes_[node].extra;
  const bool has_extra = !extra.tokens.empty() && (node == kRoot || extra_node != kRoot);
  std::vector<std::int32_t> unmatched;
  if (has_extra) unmatched = extra_children_[static_cast<std::size_t>(extra_node + 1)];
  // Of nodes that the outside drafter has not looked after, the texts alone speak.
  const bool both_speak = !unmatched.empty();
  float missed = 0, rest = 0;
  if (both_speak) {
    float held = 0, named = 0;
    for (const Proposal& p : pooler_.proposals()) held += p.probability;
    for (const std::int32_t i : unmatched) named += extra.prob[i];
    missed = Fusion::left_over(held);
    rest = Fusion::left_over(named);
  }
  const auto fused = [&](Known known, Token token, float by_texts, float by_other) {
    const float probability = fusion_.probability(known, by_texts, by_other, missed, rest);
    judged_.push_back({node, token, known, probability});
    return probability;
  };
  for (const Proposal& p : pooler_.proposals()) {
    Node child{.token = p.token, .parent = node, .extra = kRoot, .depth = depth, .first = p.first, .count = p.count,
               .probability = p.probability, .path_probability = 0, .source = main_source(p)};
    for (std::size_t i = 0; i < unmatched.size(); ++i) {
      if (extra.tokens[unmatched[i]] != p.token) continue;
      child.extra = unmatched[i];
      unmatched.erase(unmatched.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    if (child.extra != kRoot) {
      const float by_other = extra.prob[child.extra];
      // It is counted for the surer of the two.
      if (by_other > p.probability) child.source = static_cast<Source>(extra.source[child.extra]);
      child.probability = fused(Known::kByBoth, p.token, p.probability, by_other);
    } else if (both_speak) {
      child.probability = fused(Known::kByTexts, p.token, p.probability, 0);
    }
    child.path_probability = path * child.probability;
    if (child.path_probability >= bounds.min_path_prob) push(child);
  }
  for (const std::int32_t i : unmatched) {
    const float probability = fused(Known::kByOther, extra.tokens[i], 0, extra.prob[i]);
    const Node child{.token = extra.tokens[i], .parent = node, .extra = i, .depth = depth, .first = 0, .count = 0,
                     .probability = probability, .path_probability = path * probability,
                     .source = static_cast<Source>(extra.source[i])};
    if (child.path_probability >= bounds.min_path_prob) push(child);
  }
}

std::size_t TreeBuilder::best_size(std::span<const float> cost) const {
  std::size_t best = 0;
  float gain = 0, best_gain = 0;
  for (std::size_t n = 1; n <= chosen_.size(); ++n) {
    const Node& node = nodes_[chosen_[n - 1]];
    const float added = (cost[n] - cost[n - 1]) / cost[0];
    gain += node.path_probability * value(node.depth) * std::max(1 - added, 0.0f) - (1 - node.path_probability) * added;
    if (gain > best_gain) {
      best_gain = gain;
      best = n;
    }
  }
  return best;
}

const FlatTree& TreeBuilder::build(const Sources& sources, const Situation& situation, const BudgetBounds& bounds,
                                   const ExtraTree& extra) {
  extra_children_.assign(extra.tokens.size() + 1, {});
  for (std::size_t i = 0; i < extra.tokens.size(); ++i) {
    extra_children_[static_cast<std::size_t>(extra.parents[i] + 1)].push_back(static_cast<std::int32_t>(i));
  }
  start(sources);
  std::size_t most = static_cast<std::size_t>(std::max(bounds.max_nodes, 0));
  if (!bounds.cost.empty()) most = std::min(most, bounds.cost.size() - 1);
  const bool costs = !bounds.cost.empty();
  if (costs) least_increments(bounds.cost, least_increment_);
  float least_rank = costs ? least_rank_that_pays(least_increment_[0]) : 0;
  look_after(kRoot, sources, situation, std::max(bounds.min_path_prob, probability_of(least_rank, 1)));
  push_children(kRoot, bounds, extra);
  while (!heap_.empty() && chosen_.size() < most) {
    // Later nodes rank no higher than this one. Where it cannot pay for the cheapest of them, none can.
    if (costs) least_rank = least_rank_that_pays(least_increment_[chosen_.size()]);
    if (costs && heap_.front().rank <= least_rank) break;
    std::pop_heap(heap_.begin(), heap_.end());
    const std::int32_t node = heap_.back().node;
    heap_.pop_back();
    place_.resize(nodes_.size(), -1);
    place_[node] = static_cast<std::int32_t>(chosen_.size());
    chosen_.push_back(node);
    if (chosen_.size() == most) break;
    const int depth = nodes_[node].depth + 1;
    look_after(node, sources, situation, std::max(bounds.min_path_prob, probability_of(least_rank, depth)));
    push_children(node, bounds, extra);
  }
  if (costs) chosen_.resize(best_size(bounds.cost));
  tree_.tokens.clear();
  tree_.parents.clear();
  tree_.prob.clear();
  tree_.source.clear();
  for (const std::int32_t index : chosen_) {
    const Node& node = nodes_[index];
    tree_.tokens.push_back(node.token);
    tree_.parents.push_back(node.parent == kRoot ? kRoot : place_[node.parent]);
    tree_.prob.push_back(node.probability);
    tree_.source.push_back(static_cast<std::uint8_t>(node.source));
  }
  return tree_;
}

void TreeBuilder::judge(std::span<const Token> tokens) {
  std::int32_t parent = kRoot;
  for (const Token token : tokens) {
    bool heard = false;
    for (const Judged& judged : judged_) {
      if (judged.parent != parent) continue;
      fusion_.learn(judged.known, judged.probability, judged.token == token);
      heard = true;
    }
    if (!heard) break;  // the outside drafter has looked after none of the nodes below either
    const auto next = std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& node) {
      return node.parent == parent && node.token == token;
    });
    if (next == nodes_.end()) break;
    parent = static_cast<std::int32_t>(next - nodes_.begin());
  }
  judged_.clear();
}

std::span<const Candidate> TreeBuilder::support(std::int32_t node) const {
  const Node& chosen = nodes_[chosen_[static_cast<std::size_t>(node)]];
  return {grouped_.data() + chosen.first, chosen.count};
}

void TreeBuilder::follow(const Sources& sources, const Situation& situation, std::span<const Token> next,
                         int max_depth, Observations& observations) {
  start(sources);
  std::int32_t node = kRoot;
  for (int depth = 0; depth < max_depth && depth < static_cast<int>(next.size()); ++depth) {
    const Token truth = next[depth];
    const std::size_t group_start = grouped_.size();
    look_after(node, sources, situation, 0, &observations.tokens);
    if (pooler_.proposals().empty()) return;
    const auto number = static_cast<std::int32_t>(observations.longest.size());
    int longest = 0;
    for (std::size_t i = group_start; i < grouped_.size(); ++i) {
      const Candidate& candidate = grouped_[i];
      longest = std::max<int>(longest, candidate.match);
      observations.node_of_candidate.push_back(number);
      for (const int value : {static_cast<int>(candidate.origin), match_bucket(candidate.match),
                              static_cast<int>(candidate.relation), static_cast<int>(candidate.recency),
                              candidate.next == truth ? 1 : 0}) {
        observations.candidates.push_back(static_cast<std::uint8_t>(value));
      }
    }
    observations.longest.push_back(static_cast<std::uint8_t>(match_bucket(longest)));
    const Proposal* hit = nullptr;
    for (const Proposal& p : pooler_.proposals()) {
      observations.token_hits.push_back(p.token == truth);
      observations.depths.push_back(static_cast<std::uint8_t>(std::min(depth, 255)));
      if (p.token == truth) hit = &p;
    }
    if (!hit) return;
    nodes_.push_back({.token = truth, .parent = node, .extra = kRoot, .depth = depth + 1, .first = hit->first,
                      .count = hit->count, .probability = hit->probability, .path_probability = 0,
                      .source = Source::kRequest});
    node = static_cast<std::int32_t>(nodes_.size() - 1);
  }
}

}  // namespace agentspec
