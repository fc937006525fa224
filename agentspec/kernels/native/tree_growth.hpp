// A draft tree that grows level by level, each time below its likeliest leaves.
#pragma once

#include <cstdint>
#include <vector>

namespace agentspec {

struct GrowthBounds {
  int64_t depth;         // most levels
  int64_t width;         // nodes of a level that are expanded further
  int64_t children;      // likeliest next tokens taken of each expanded node
  double min_path_prob;  // nodes whose path is less likely are left out
  // Accepted tokens that a further level must promise for each token that a verify step emits without it.
  double level_gain;
};

class TreeGrowth {
 public:
  explicit TreeGrowth(const GrowthBounds& bounds);

  const GrowthBounds& bounds() const { return bounds_; }
  // Levels so far.
  int64_t level() const { return level_; }
  // Nodes of the tree: the target's tokens, parents (-1: the root), and probabilities given the parent.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int32_t>& parents() const { return parents_; }
  const std::vector<float>& probs() const { return probs_; }

  // Adds a level below the nodes expanded last, at first below the root. `ids` and `probs` are [rows, children], the
  // likeliest tokens after each of these nodes, best first. Returns whether the new level's likeliest nodes are to be
  // expanded: they then are the nodes that the rest of this class describes.
  bool add_level(const int64_t* ids, const float* probs, int64_t rows, int64_t children);

  // Nodes to be expanded.
  int64_t rows() const { return static_cast<int64_t>(expanded_.size()); }
  // [rows], which of the nodes expanded before is the parent of each of them.
  const std::vector<int64_t>& sources() const { return sources_; }
  // [rows], their tokens.
  const std::vector<int64_t>& following() const { return following_; }
  // Nodes expanded in earlier levels.
  int64_t drafted() const { return expanded_before_; }
  // [rows, drafted + rows], which of all nodes expanded so far each of them sees: its ancestors and itself.
  const std::vector<uint8_t>& mask() const { return mask_; }

 private:
  void expand(const std::vector<int32_t>& nodes);

  GrowthBounds bounds_;
  int64_t level_ = 0;
  double expected_tokens_ = 1.0;  // that a verify step over the tree emits, the bonus token among them
  std::vector<int32_t> tokens_, parents_;
  std::vector<float> probs_;
  std::vector<double> paths_;     // probability that a node's path is accepted
  std::vector<int64_t> sources_of_;  // of every node, see `sources`

  std::vector<int32_t> expanded_;
  int64_t expanded_before_ = 0;
  std::vector<int64_t> sources_, following_;
  std::vector<uint8_t> mask_;
};

}  // namespace agentspec
