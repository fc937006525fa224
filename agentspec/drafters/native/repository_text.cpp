#include "repository_text.hpp"

#include <algorithm>
#include <bit>

namespace agentspec {
namespace {

constexpr std::int64_t kFetchedAhead = 4;  // neighbours whose tokens are fetched before they are compared

// How the left context that ends at tokens[position] compares with `context`, and how many tokens they share.
struct Comparison {
  int shared;
  bool before;  // it sorts before `context`
};

Comparison compare(const Text& text, std::int64_t position, std::span<const Token> context) {
  const int depth = std::min<int>(kContextDepth, static_cast<int>(context.size()));
  for (int i = 0; i < depth; ++i) {
    const Token theirs = text.at(position - i);
    const Token ours = context[context.size() - 1 - i];
    if (theirs != ours) return {i, theirs < ours};
  }
  return {depth, false};
}

}  // namespace

RepositoryText::RepositoryText(std::shared_ptr<const Segment> segment, std::vector<std::uint64_t> live)
    : segment_(std::move(segment)), live_(std::move(live)) {
  std::int64_t alive = 0;
  for (const std::uint64_t word : live_) alive += std::popcount(word);
  if (alive == segment_->document_count()) live_.clear();
}

bool RepositoryText::is_live(std::int64_t position) const {
  if (live_.empty()) return true;
  const std::uint32_t document = segment_->document_at(position);
  const std::size_t word = document / 64;
  return word < live_.size() && (live_[word] >> (document % 64) & 1u) != 0;
}

std::int64_t RepositoryText::insertion_point(std::span<const Token> context) const {
  const Text text = this->text();
  const std::uint32_t* order = segment_->order();
  std::int64_t low = 0, high = segment_->order_size();
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    // Either of these is looked at next, and in a large segment each look waits for memory.
    __builtin_prefetch(order + low + (middle - low) / 2);
    __builtin_prefetch(order + middle + (high - middle) / 2);
    if (compare(text, order[middle], context).before) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void RepositoryText::find(std::span<const Token> context, int limit, int shortest, std::uint32_t text_index,
                          std::vector<Candidate>& found) const {
  if (context.empty() || limit <= 0 || damaged()) return;
  const std::size_t first = found.size();
  const Text text = this->text();
  const std::uint32_t* order = segment_->order();
  const std::int64_t size = segment_->order_size();
  std::int64_t above = insertion_point(context), below = above - 1;
  int match_above = above < size ? compare(text, order[above], context).shared : -1;
  int match_below = below >= 0 ? compare(text, order[below], context).shared : -1;
  const auto fetch = [&](std::int64_t place) {
    if (place >= 0 && place < size) __builtin_prefetch(text.tokens + order[place]);
  };
  for (std::int64_t i = 1; i <= kFetchedAhead; ++i) {
    fetch(above + i);
    fetch(below - i);
  }
  // Every place is visited at most once; dead documents must not make a lookup long.
  for (int visits = 4 * limit, count = 0; visits > 0 && count < limit; --visits) {
    const bool up = match_above >= match_below;
    const int shared = up ? match_above : match_below;
    if (shared < shortest) break;
    const std::int64_t position = order[up ? above : below];
    const Token next = text.at(position + 1);
    if (next >= 0 && is_live(position)) {
      int match = shared;
      if (shared == kContextDepth) match = match_length(text, position + 1, context);
      found.push_back({.position = position + 1, .next = next, .text = text_index,
                       .match = static_cast<std::uint16_t>(match), .origin = Origin::kRepository,
                       .relation = Relation::kNone, .recency = recency_bucket(count), .weight = 0});
      ++count;
    }
    if (up) {
      fetch(above + kFetchedAhead + 1);
      match_above = ++above < size ? compare(text, order[above], context).shared : -1;
    } else {
      fetch(below - kFetchedAhead - 1);
      match_below = --below >= 0 ? compare(text, order[below], context).shared : -1;
    }
  }
  if (damaged()) found.resize(first);
}

}  // namespace agentspec
