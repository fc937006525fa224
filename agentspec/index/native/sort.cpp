#include "sort.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "segment.hpp"

namespace agentspec {
namespace {

constexpr int kTokensPerKey = 3;
constexpr int kBitsPerToken = 21;
constexpr std::uint64_t kTokenMask = (std::uint64_t{1} << kBitsPerToken) - 1;

struct Entry {
  std::uint64_t key;
  std::uint32_t position;

  bool operator<(const Entry& other) const {
    return key != other.key ? key < other.key : position < other.position;
  }
};

class ContextSorter {
 public:
  explicit ContextSorter(std::span<const std::int32_t> tokens) : tokens_(tokens) {}

  std::vector<std::uint32_t> sort() {
    const std::vector<std::uint32_t> ends = distribute_by_token();
    std::uint32_t largest = 0, begin = 0;
    for (const std::uint32_t end : ends) {
      largest = std::max(largest, end - begin);
      begin = end;
    }
    scratch_.resize(largest);
    begin = 0;
    for (const std::uint32_t end : ends) {
      sort_group(order_.data() + begin, scratch_.data(), end - begin, 1);
      begin = end;
    }
    return std::move(order_);
  }

 private:
  // A counting sort by tokens[p], stable in p. Returns the end of each token's group.
  std::vector<std::uint32_t> distribute_by_token() {
    std::vector<std::uint32_t> next;
    for (const std::int32_t token : tokens_) {
      if (token == kSeparator) continue;
      if (token < 0 || token > kMaxToken) {
        throw std::invalid_argument("token " + std::to_string(token) + " is outside [0, " +
                                    std::to_string(kMaxToken) + "] and is not the separator -1");
      }
      if (static_cast<std::size_t>(token) >= next.size()) next.resize(static_cast<std::size_t>(token) + 1);
      ++next[static_cast<std::size_t>(token)];
    }
    std::uint32_t total = 0;
    for (std::uint32_t& slot : next) {
      const std::uint32_t count = slot;
      slot = total;
      total += count;
    }
    order_.resize(total);
    for (std::size_t position = 0; position < tokens_.size(); ++position) {
      const std::int32_t token = tokens_[position];
      if (token != kSeparator) order_[next[static_cast<std::size_t>(token)]++] = static_cast<std::uint32_t>(position);
    }
    return next;
  }

  // The next kTokensPerKey tokens of the context, from `depth` tokens left of `position` on; 0 stands for the
  // separator, the start of the array and everything behind them, and for what lies beyond kContextDepth.
  std::uint64_t key_at(std::uint32_t position, int depth) const {
    std::uint64_t key = 0;
    for (int i = 0; i < kTokensPerKey; ++i) {
      const std::int64_t at = static_cast<std::int64_t>(position) - depth - i;
      if (at < 0 || depth + i >= kContextDepth) return key << (kBitsPerToken * (kTokensPerKey - i));
      const std::int32_t token = tokens_[static_cast<std::size_t>(at)];
      if (token == kSeparator) return key << (kBitsPerToken * (kTokensPerKey - i));
      key = key << kBitsPerToken | static_cast<std::uint64_t>(token + 1);
    }
    return key;
  }

  // Sorts `count` positions that agree on their last `depth` tokens and are ascending. `scratch` holds as many entries.
  void sort_group(std::uint32_t* positions, Entry* scratch, std::uint32_t count, int depth) {
    if (count < 2 || depth >= kContextDepth) return;
    for (std::uint32_t i = 0; i < count; ++i) scratch[i] = {key_at(positions[i], depth), positions[i]};
    // Repeated text makes large groups of equal keys, which are in order already.
    if (!std::is_sorted(scratch, scratch + count)) std::sort(scratch, scratch + count);
    for (std::uint32_t i = 0; i < count; ++i) positions[i] = scratch[i].position;
    for (std::uint32_t begin = 0; begin < count;) {
      const std::uint64_t key = scratch[begin].key;
      std::uint32_t end = begin + 1;
      while (end < count && scratch[end].key == key) ++end;
      const bool context_goes_on = (key & kTokenMask) != 0;
      // The recursion reads nothing of scratch but its own part, which this loop is done with.
      if (context_goes_on) sort_group(positions + begin, scratch + begin, end - begin, depth + kTokensPerKey);
      begin = end;
    }
  }

  std::span<const std::int32_t> tokens_;
  std::vector<std::uint32_t> order_;
  std::vector<Entry> scratch_;
};

}  // namespace

std::vector<std::uint32_t> sort_contexts(std::span<const std::int32_t> tokens) {
  if (tokens.size() >= kNoDocument) throw std::invalid_argument("a segment holds fewer than 2^32 - 1 tokens");
  return ContextSorter(tokens).sort();
}

}  // namespace agentspec
