#include "indexed_text.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace agentspec {
namespace {

constexpr int kWalkFactor = 4;  // places visited on a chain per place wanted: bounds the cost of hash collisions
constexpr auto& kOrders = ContextHashes::kOrders;

// Of the last `order` tokens before `end`.
std::uint64_t hash_before(const Token* end, int order) {
  std::uint64_t hash = 0;
  for (int i = 1; i <= order; ++i) hash = (hash ^ static_cast<std::uint32_t>(end[-i])) * 0x9e3779b97f4a7c15u;
  return hash;
}

}  // namespace

ContextHashes::ContextHashes(std::span<const Token> context) {
  for (std::size_t i = 0; i < kOrders.size(); ++i) {
    if (static_cast<std::size_t>(kOrders[i]) > context.size()) continue;
    values[i] = hash_before(context.data() + context.size(), kOrders[i]);
  }
}

IndexedText::IndexedText(std::int64_t expected_tokens) {
  const auto expected = static_cast<std::size_t>(std::max<std::int64_t>(expected_tokens, 1024));
  tokens_.reserve(expected);
  for (Chain& chain : chains_) chain.previous.reserve(expected + 1);
  resize_chains(std::bit_ceil(2 * expected));
}

void IndexedText::append(std::span<const Token> tokens) {
  const std::int64_t known = size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (const Token token : tokens) {
    if (token < 0) continue;
    if (static_cast<std::size_t>(token) >= counts_.size()) counts_.resize(static_cast<std::size_t>(token) * 5 / 4 + 64);
    if (counts_[token] < std::numeric_limits<std::uint16_t>::max()) ++counts_[token];
  }
  const std::size_t slots = chains_[0].newest.size();
  if (tokens_.size() > slots) {
    resize_chains(std::bit_ceil(tokens_.size()));
  } else {
    link(known + 1);
  }
}

void IndexedText::link(std::int64_t first) {
  const std::int64_t end = size() + 1;
  for (Chain& chain : chains_) chain.previous.resize(static_cast<std::size_t>(end), 0);
  // Nearly every place's slot is somewhere else in memory: a few are fetched together before they are written.
  constexpr std::int64_t kTogether = 16;
  std::array<std::array<std::int32_t*, kOrders.size()>, kTogether> newest;
  for (; first < end; first += kTogether) {
    const std::int64_t count = std::min(kTogether, end - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const Token* place = tokens_.data() + first + i;
      for (std::size_t k = 0; k < kOrders.size(); ++k) {
        newest[i][k] = first + i < kOrders[k] ? nullptr : &chains_[k].newest[slot(hash_before(place, kOrders[k]))];
        __builtin_prefetch(newest[i][k], 1);
      }
    }
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < kOrders.size(); ++k) {
        if (newest[i][k] == nullptr) continue;
        chains_[k].previous[first + i] = *newest[i][k];
        *newest[i][k] = static_cast<std::int32_t>(first + i);
      }
    }
  }
}

void IndexedText::resize_chains(std::size_t slots) {
  bits_ = std::bit_width(slots) - 1;
  for (Chain& chain : chains_) {
    chain.newest.assign(slots, 0);
    chain.previous.assign(1, 0);
  }
  link(1);
}

void IndexedText::prefetch(const ContextHashes& hashes) const {
  for (std::size_t i = 0; i < kOrders.size(); ++i) __builtin_prefetch(&chains_[i].newest[slot(hashes.values[i])]);
}

void IndexedText::find(std::span<const Token> context, const ContextHashes& hashes, int limit, int enough,
                       std::uint32_t text_index, std::vector<Candidate>& found) const {
  const Text text = this->text();
  int count = 0;
  int longer = kMaxMatch + 1;  // what earlier, longer chains have covered already
  for (std::size_t i = 0; i < kOrders.size() && count < limit; ++i) {
    const int order = kOrders[i];
    if (static_cast<std::size_t>(order) > context.size()) continue;
    if (order == 1 && count >= enough) break;
    const int wanted = order == 1 ? std::min(limit, enough) : limit;
    int visits = kWalkFactor * limit;
    std::int32_t place = chains_[i].newest[slot(hashes.values[i])];
    for (std::int32_t older = 0; place > 0 && visits > 0 && count < wanted; place = older, --visits) {
      older = chains_[i].previous[place];
      __builtin_prefetch(&tokens_[older]);
      __builtin_prefetch(&chains_[i].previous[older]);
      if (place >= text.size || tokens_[place] < 0) continue;
      const int match = match_length(text, place, context);
      if (match < order || match >= longer) continue;
      found.push_back({.position = place, .next = tokens_[place], .text = text_index,
                       .match = static_cast<std::uint16_t>(match), .origin = Origin::kPrompt,
                       .relation = Relation::kNone, .recency = recency_bucket(count), .weight = 0});
      ++count;
    }
    longer = order;
  }
}

}  // namespace agentspec
