// Candidates at one node of the tree, pooled by the token that they propose, with the probability of each token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "candidate.hpp"
#include "ranker.hpp"
#include "sources.hpp"

namespace agentspec {

// What the session knows beside the candidates.
struct Situation {
  float fast_rate = 0.7f;          // share of accepted proposals, forgetting within a few steps
  float slow_rate = 0.7f;          // the same, forgetting within tens of steps
  float bias = 0;                  // correction of the log-odds, learnt from this request's outcomes
  std::int64_t copied = 0;         // tokens generated while a copy cursor was being followed without a break
  std::int64_t since_left = 0;     // tokens generated since the latest copy broke off
  std::int64_t output_length = 0;  // tokens
};

// All candidates at a node that agree on the next token.
struct Proposal {
  Token token;
  std::uint32_t first, count;  // its candidates, in the grouped vector
  float weight;                // sum over its candidates
  float best_weight;
  int longest;                 // longest match among them
  int agreeing;                // how many of them have that match
  std::array<float, kOrigins> by_origin;
  std::uint32_t relations;     // bit set of their relations
  bool has_newest;             // holds the newest candidate of the request
  float probability;
};

// Pools `candidates` into `proposals`, likeliest first, and moves them to the end of `grouped`, pool by pool.
// `last` is the token before them and `depth` the number of drafted tokens before them.
// With `features`, the row of each proposal is appended there.
void pool(std::span<Candidate> candidates, const Ranker& ranker, const Sources& sources, const Situation& situation,
          Token last, int depth, std::vector<Candidate>& grouped, std::vector<Proposal>& proposals,
          std::vector<Features>* features = nullptr);

}  // namespace agentspec
