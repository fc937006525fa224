// Candidates at one node of the tree, pooled by the token that they propose, with the probability of each token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "candidate.hpp"
#include "ranker.hpp"
#include "sources.hpp"
#include "token_notes.hpp"

namespace agentspec {

// What the session knows beside the candidates.
struct Situation {
  float fast_rate = 0.7f;          // share of accepted proposals, forgetting within a few steps
  float slow_rate = 0.7f;          // the same, forgetting within tens of steps
  float bias = 0;                  // correction of the log-odds, learnt from this request's outcomes
  std::int64_t copied = 0;         // tokens generated while a copy cursor was being followed without a break
  std::int64_t since_left = 0;     // tokens generated since the latest copy broke off
  std::int64_t output_length = 0;  // tokens
  TokenNotes notes;
};

// All candidates at a node that agree on the next token.
struct Proposal {
  Token token;
  std::uint32_t first = 0, count = 0;  // its candidates, in the grouped vector
  float weight = 0;                    // sum over its candidates
  float best_weight = 0;               // of its heaviest candidate
  int longest = 0;                     // longest match among them
  int agreeing = 0;                    // how many of them have that match
  std::array<float, kOrigins> by_origin{};
  std::uint32_t relations = 0;         // bit set of their relations
  bool has_newest = false;             // holds the newest candidate of the request
  float probability = 0;
};

// What is common to all proposals of a node.
struct Totals {
  float weight = 0;
  float none = 0;
  float log_whole = 0;     // logarithm of the weight of all candidates and of none of them
  float log_weight = 0;    // logarithm of the weight of all candidates
  int longest = 0;
  int second_longest = 0;  // longest match of the best other token
  int agreeing = 0;        // candidates with the longest match
  int candidates = 0;
  int distinct = 0;
};

// The node after which tokens are proposed.
struct NodeView {
  Token last;               // the token before the proposals
  int depth;                // drafted tokens before the proposals
  Zone zone;
  float least_probability;  // less likely proposals are not wanted
};

// Pools the candidates of one node after the other.
class Pooler {
 public:
  explicit Pooler(const Ranker& ranker) : ranker_(ranker) {}

  // Pools `candidates` by token and appends them to `grouped`, pool by pool. With `features`, every proposal is ranked
  // and its row appended there.
  void pool(std::span<Candidate> candidates, const Sources& sources, const Situation& situation, const NodeView& node,
            std::vector<Candidate>& grouped, std::vector<Features>* features = nullptr);

  // The proposals of the last node, heaviest first; unwanted ones may have probability 0.
  std::span<const Proposal> proposals() const { return proposals_; }

 private:
  void keep_heaviest(float negligible);
  void rank(const Totals& all, const Sources& sources, const Situation& situation, const NodeView& node,
            std::vector<Features>* features);

  const Ranker& ranker_;
  std::vector<Proposal> proposals_;
  std::vector<std::uint16_t> pool_of_;  // by candidate
};

}  // namespace agentspec
