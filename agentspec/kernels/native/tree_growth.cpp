#include "tree_growth.hpp"

#include <algorithm>

namespace agentspec {
namespace {

constexpr int32_t kRoot = -1;

}  // namespace

TreeGrowth::TreeGrowth(const GrowthBounds& bounds) : bounds_(bounds), expanded_{kRoot} {}

bool TreeGrowth::add_level(const int64_t* ids, const float* probs, int64_t rows, int64_t children) {
  std::vector<int32_t> fresh;
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t parent = expanded_[row];
    const double reach = parent == kRoot ? 1.0 : paths_[parent];
    for (int64_t child = row * children; child < (row + 1) * children; ++child) {
      const double path = reach * probs[child];
      if (!(path >= bounds_.min_path_prob)) break;
      fresh.push_back(static_cast<int32_t>(tokens_.size()));
      tokens_.push_back(static_cast<int32_t>(ids[child]));
      parents_.push_back(parent);
      probs_.push_back(probs[child]);
      paths_.push_back(path);
      sources_of_.push_back(row);
      expected_tokens_ += path;
    }
  }
  ++level_;
  std::stable_sort(fresh.begin(), fresh.end(), [&](int32_t a, int32_t b) { return paths_[a] > paths_[b]; });
  fresh.resize(std::min<size_t>(fresh.size(), bounds_.width));
  // The children of a node can bring no more than the node itself.
  double promise = 0.0;
  for (const int32_t node : fresh) promise += paths_[node];
  if (level_ == bounds_.depth || fresh.empty() || promise < bounds_.level_gain * expected_tokens_) return false;
  expand(fresh);
  return true;
}

void TreeGrowth::expand(const std::vector<int32_t>& nodes) {
  if (level_ > 1) expanded_before_ += rows();  // not the root, which was expanded first
  const auto count = static_cast<int64_t>(nodes.size());
  const int64_t columns = expanded_before_ + count;
  std::vector<uint8_t> mask(count * columns);
  sources_.clear();
  following_.clear();
  for (int64_t row = 0; row < count; ++row) {
    const int64_t source = sources_of_[nodes[row]];
    sources_.push_back(source);
    following_.push_back(tokens_[nodes[row]]);
    // What the parent sees, and the node itself.
    std::copy_n(mask_.begin() + source * expanded_before_, expanded_before_, mask.begin() + row * columns);
    mask[row * columns + expanded_before_ + row] = 1;
  }
  mask_ = std::move(mask);
  expanded_ = nodes;
}

}  // namespace agentspec
