// Best-first growth of one draft tree over all candidates together.
//
// What a node is worth. An accepted node costs nothing in the end: its token has to pass the target once anyway, in this
// step or as the first token of the next one. A node that is not accepted is wasted. What an accepted one saves depends
// on its depth: the first saves a whole step; the one after d others saves about 1 / d of a step, since a copy that is cut
// there goes on in the next step. So a node with path probability p at depth d pays when p * value(d) * (1 - a) exceeds
// (1 - p) * a, where a plain step, over one token, costs 1 and the node adds a.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fusion.hpp"
#include "proposals.hpp"

namespace agentspec {

inline constexpr std::int32_t kRoot = -1;

struct BudgetBounds {
  int max_nodes;
  int max_depth;
  float min_path_prob;
  std::span<const float> cost;  // seconds of a step by number of nodes; empty: unknown, only the other bounds apply
};

// A tree as arrays, in topological order.
struct FlatTree {
  std::vector<Token> tokens;
  std::vector<std::int32_t> parents;
  std::vector<float> prob;
  std::vector<std::uint8_t> source;
};

// The part of an outside drafter's tree that enters the builder's heap.
struct ExtraTree {
  std::span<const Token> tokens;
  std::span<const std::int32_t> parents;
  std::span<const float> prob;
  std::span<const std::uint8_t> source;
};

// What `TreeBuilder::follow` saw at the nodes along a given continuation; for fitting the ranker.
struct Observations {
  std::vector<std::int32_t> node_of_candidate;
  std::vector<std::uint8_t> candidates;  // origin, match bucket, relation, recency, hit: five numbers each
  std::vector<Features> tokens;
  std::vector<std::uint8_t> token_hits;
  std::vector<std::uint8_t> depths;      // by token row, at most 255
  std::vector<std::uint8_t> longest;     // match bucket of the longest match, by node
};

class TreeBuilder {
 public:
  TreeBuilder(const Ranker& ranker, const Fusion::Weights& fusion) : pooler_(ranker), fusion_(fusion) {}

  // Grows a tree after the request so far. The reference is valid until the next call.
  const FlatTree& build(const Sources& sources, const Situation& situation, const BudgetBounds& bounds,
                        const ExtraTree& extra);

  // The verdict on the last tree: corrects how the outside drafter's word is weighed against the texts'.
  void judge(std::span<const Token> tokens);

  // The places that node `node` of the last tree was copied from.
  std::span<const Candidate> support(std::int32_t node) const;

  // Walks along `next`, the true continuation, as far as candidates hold it, and notes what the ranker would see.
  void follow(const Sources& sources, const Situation& situation, std::span<const Token> next, int max_depth,
              Observations& observations);

 private:
  struct Node {
    Token token;
    std::int32_t parent;         // index into nodes_
    std::int32_t extra;          // the same node of the outside drafter's tree, or -1
    std::int32_t depth;          // 1 for a child of the last committed token
    std::uint32_t first, count;  // the candidates that propose it, in grouped_
    float probability;           // given its parent
    float path_probability;
    Source source;
    Zone zone = Zone::kNone;     // after it; set when it is looked after
  };

  // A token to which both drafters' evidence gave a probability.
  struct Judged {
    std::int32_t parent;  // index into nodes_
    Token token;
    Known known;
    float probability;
  };

  // A node in the heap: the highest rank comes first, of equal ones the node that entered first.
  struct Waiting {
    float rank;
    std::int32_t node;

    bool operator<(const Waiting& other) const {
      return rank != other.rank ? rank < other.rank : node > other.node;
    }
  };

  void start(const Sources& sources);
  // Pools what may follow node `node` (kRoot: the request), as far as its path stays above `min_path_prob`.
  void look_after(std::int32_t node, const Sources& sources, const Situation& situation, float min_path_prob,
                  std::vector<Features>* features = nullptr);
  void push_children(std::int32_t node, const BudgetBounds& bounds, const ExtraTree& extra);
  // The node may be chosen from now on.
  void push(const Node& node);
  // How many of the chosen nodes save most in all.
  std::size_t best_size(std::span<const float> cost) const;
  std::span<const Token> context_of(std::int32_t node, const Sources& sources);

  Pooler pooler_;
  Fusion fusion_;
  std::vector<Judged> judged_;
  int lookups_left_ = 0;
  std::vector<Node> nodes_;               // every node that entered the heap; by decreasing rank they enter the tree
  std::vector<Waiting> heap_;             // nodes that may be chosen next
  std::vector<std::int32_t> chosen_;      // nodes of the tree, in the order of the tree
  std::vector<std::int32_t> place_;       // by index into nodes_: the node's index in the tree
  std::vector<Candidate> candidates_;     // at the node that is being looked after
  std::vector<Candidate> grouped_;        // candidates of all nodes, pool by pool
  std::vector<std::vector<std::int32_t>> extra_children_;  // by node of the outside tree + 1
  std::vector<float> least_increment_;
  std::vector<Token> context_;
  FlatTree tree_;
};

}  // namespace agentspec
