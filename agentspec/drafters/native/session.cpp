#include "session.hpp"

#include <algorithm>

namespace agentspec {
namespace {

constexpr float kFastForgetting = 0.3f;
constexpr float kSlowForgetting = 0.05f;
constexpr float kBiasRate = 0.05f;   // step of the online correction of the log-odds
constexpr float kBiasDecay = 0.97f;  // per verdict
constexpr float kMaxBias = 1.5f;
constexpr int kShortestCopy = 4;     // tokens that must agree before a place counts as being copied
constexpr std::size_t kCopiesFollowed = 3;  // places followed per verdict

}  // namespace

Session::Session(std::shared_ptr<const Ranker> ranker, const Fusion::Weights& fusion, std::span<const Token> prompt)
    : ranker_(std::move(ranker)), sources_(prompt), builder_(*ranker_, fusion) {}

const FlatTree& Session::propose(const BudgetBounds& bounds, const ExtraTree& extra) {
  do {
    tree_ = &builder_.build(sources_, situation_, bounds, extra);
  } while (sources_.drop_damaged());  // what was read from a damaged file is not drafted
  for (const std::uint8_t source : tree_->source) ++counts_.drafted[source];
  // Another drafter's nodes would teach the ranker that copies go well, or badly, in places that it never spoke of.
  if (extra.tokens.empty()) known_ = *tree_;
  return *tree_;
}

std::span<const std::int32_t> Session::accepted_path(const FlatTree& tree, std::span<const Token> tokens) {
  path_.clear();
  std::int32_t parent = kRoot;
  const auto size = static_cast<std::int32_t>(tree.tokens.size());
  for (std::int32_t node = 0; node < size && path_.size() < tokens.size(); ++node) {
    if (tree.parents[node] != parent || tree.tokens[node] != tokens[path_.size()]) continue;
    path_.push_back(node);
    parent = node;
  }
  return path_;
}

void Session::learn(std::span<const Token> tokens) {
  const std::span<const std::int32_t> path = accepted_path(known_, tokens);
  const bool accepted_whole = path.size() == tokens.size();
  // Every drafted child of a node on the accepted path was judged: it was right or wrong.
  on_path_.assign(known_.tokens.size(), false);
  for (const std::int32_t node : path) on_path_[node] = true;
  float error = 0;
  bool judged = false;
  for (std::int32_t node = 0; node < static_cast<std::int32_t>(known_.tokens.size()); ++node) {
    if (known_.parents[node] != kRoot && !on_path_[known_.parents[node]]) continue;
    error += (on_path_[node] ? 1.0f : 0.0f) - known_.prob[node];
    situation_.notes.judge(known_.tokens[node], known_.prob[node], on_path_[node]);
    judged = true;
  }
  if (!judged) return;
  if (!accepted_whole) situation_.notes.correct(tokens[path.size()]);
  situation_.bias = std::clamp(kBiasDecay * situation_.bias + kBiasRate * error, -kMaxBias, kMaxBias);
  const auto right = static_cast<float>(path.size());
  const float rate = right / (right + (accepted_whole ? 0.0f : 1.0f));
  situation_.fast_rate += kFastForgetting * (rate - situation_.fast_rate);
  situation_.slow_rate += kSlowForgetting * (rate - situation_.slow_rate);
}

void Session::follow_copies(std::span<const std::int32_t> path, std::span<const Token> tokens) {
  // Nodes of another drafter have no place that they were copied from; what led to them may have.
  while (!path.empty() && builder_.support(path.back()).empty()) path = path.first(path.size() - 1);
  if (path.empty()) return;
  const std::span<const Candidate> support = builder_.support(path.back());
  std::vector<Candidate> heaviest(support.begin(), support.end());
  std::sort(heaviest.begin(), heaviest.end(), [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; });
  const auto depth = static_cast<std::int64_t>(path.size());
  std::vector<std::uint32_t> followed;  // one place of a text is enough
  for (const Candidate& candidate : heaviest) {
    if (followed.size() == kCopiesFollowed) break;
    if (candidate.match + 1 < kShortestCopy) continue;
    if (std::find(followed.begin(), followed.end(), candidate.text) != followed.end()) continue;
    const std::int64_t start = candidate.position - (depth - 1);
    const std::int64_t shared = common_prefix(sources_.texts()[candidate.text], start, tokens);
    if (shared == 0) continue;  // the candidate came here from another text
    followed.push_back(candidate.text);
    sources_.follow(candidate.text, start + shared, static_cast<std::int64_t>(tokens.size()) - shared);
  }
}

bool Session::commit(std::span<const Token> tokens) {
  if (tokens.empty()) return false;
  ++counts_.steps;
  if (tree_ != nullptr) {
    learn(tokens);
    builder_.judge(tokens);
  }
  std::span<const std::int32_t> path;
  if (tree_ != nullptr) {
    path = accepted_path(*tree_, tokens);
    for (const std::int32_t node : path) ++counts_.accepted[tree_->source[node]];
  }
  sources_.commit(tokens);
  if (tree_ != nullptr) follow_copies(path, tokens);
  situation_.output_length += static_cast<std::int64_t>(tokens.size());
  situation_.since_left = sources_.tokens_since_left();
  situation_.copied = situation_.since_left == 0 ? situation_.copied + static_cast<std::int64_t>(tokens.size()) : 0;
  tree_ = nullptr;
  return std::find_first_of(tokens.begin(), tokens.end(), awaited_.begin(), awaited_.end()) != tokens.end();
}

}  // namespace agentspec
