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

// A binary search waits for `before`, and what it would look at next is guessed until then: it comes out of the first
// two tokens that differ somewhere, at once.
Comparison compare(const Text& text, std::int64_t position, std::span<const Token> context) {
  constexpr std::uint64_t kSigns = 0x8000000080000000u;  // separators are negative and sort lowest
  if (position >= text.size) return {0, true};           // read from a damaged file
  const std::int64_t depth = std::min<std::int64_t>(kContextDepth, static_cast<std::int64_t>(context.size()));
  const Token* theirs = text.tokens + position + 1;
  const Token* ours = context.data() + context.size();
  const std::int64_t limit = std::min(depth, position + 1);
  int shared = 0;
  for (; shared + 2 <= limit; shared += 2) {
    const std::uint64_t left = last_two(theirs - shared) ^ kSigns, right = last_two(ours - shared) ^ kSigns;
    if (left != right) return {shared + std::countl_zero(left ^ right) / 32, left < right};
  }
  if (shared < limit) {
    if (theirs[-1 - shared] != ours[-1 - shared]) return {shared, theirs[-1 - shared] < ours[-1 - shared]};
    ++shared;
  }
  return {shared, limit < depth};  // the text begins here, and nothing sorts lower than nothing
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

RepositoryText::Insertion RepositoryText::insertion_point(std::span<const Token> context) const {
  const Text text = this->text();
  const std::uint32_t* order = segment_->order();
  std::int64_t low = 0, high = segment_->order_size();
  Insertion found{.match_below = -1, .match_above = -1};
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    // Either of these is looked at next, and in a large segment each look waits for memory.
    __builtin_prefetch(order + low + (middle - low) / 2);
    __builtin_prefetch(order + middle + (high - middle) / 2);
    const Comparison comparison = compare(text, order[middle], context);
    if (comparison.before) {
      low = middle + 1;
      found.match_below = comparison.shared;
    } else {
      high = middle;
      found.match_above = comparison.shared;
    }
  }
  found.point = low;
  return found;
}

void RepositoryText::find(std::span<const Token> context, int limit, int shortest, std::uint32_t text_index,
                          std::vector<Candidate>& found) const {
  if (context.empty() || limit <= 0 || damaged()) return;
  const std::size_t first = found.size();
  const Text text = this->text();
  const std::uint32_t* order = segment_->order();
  const std::int64_t size = segment_->order_size();
  const Insertion insertion = insertion_point(context);
  std::int64_t above = insertion.point, below = above - 1;
  int match_above = insertion.match_above, match_below = insertion.match_below;
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
      if (shared == kContextDepth) match = match_length(text, position + 1, context, shared);
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
