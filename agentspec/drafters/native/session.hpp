// Drafting state of one request: what to copy from, what was drafted last, what came of it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "sources.hpp"
#include "tree_builder.hpp"

namespace agentspec {

struct Counts {
  std::int64_t steps = 0;
  std::array<std::int64_t, kSources> drafted{};
  std::array<std::int64_t, kSources> accepted{};
};

// Not thread-safe; sessions are independent of each other.
class Session {
 public:
  Session(std::shared_ptr<const Ranker> ranker, const Fusion::Weights& fusion, std::span<const Token> prompt);

  Sources& sources() { return sources_; }

  const FlatTree& propose(const BudgetBounds& bounds, const ExtraTree& extra);

  // The verdict on the last tree: accepted tokens and one more. Without a tree in between, plain decoding.
  // Whether one of the awaited tokens is among them.
  bool commit(std::span<const Token> tokens);

  void await(std::vector<Token> tokens) { awaited_ = std::move(tokens); }

  const Counts& counts() const { return counts_; }

  void observe(std::span<const Token> next, int max_depth, Observations& observations) {
    builder_.follow(sources_, situation_, next, max_depth, observations);
    tree_ = nullptr;
  }

 private:
  // Follows `tokens` down a tree; returns the nodes that hold them.
  std::span<const std::int32_t> accepted_path(const FlatTree& tree, std::span<const Token> tokens);
  void learn(std::span<const Token> tokens);
  void follow_copies(std::span<const std::int32_t> path, std::span<const Token> tokens);

  std::shared_ptr<const Ranker> ranker_;
  Sources sources_;
  TreeBuilder builder_;
  Situation situation_;
  Counts counts_;
  const FlatTree* tree_ = nullptr;  // the last proposal, until its verdict
  FlatTree known_;                  // the last one of ours alone, which the ranker's verdicts are about
  std::vector<Token> awaited_;
  std::vector<std::int32_t> path_;
  std::vector<char> on_path_;  // by node: whether it is on the accepted path
};

}  // namespace agentspec
