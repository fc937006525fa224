// A growing text in memory whose places are found by the one, two or four tokens before them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "candidate.hpp"

namespace agentspec {

// Hashes of the last four, two and one tokens of a context; the same for every text that is searched for it.
struct ContextHashes {
  static constexpr std::array<int, 3> kOrders{4, 2, 1};

  // An order that the context is too short for has no hash.
  explicit ContextHashes(std::span<const Token> context);

  std::array<std::uint64_t, 3> values{};  // in the order of kOrders
};

// Tokens with three hash chains over them. Appending costs O(1) per token; chains run from new to old.
class IndexedText {
 public:
  explicit IndexedText(std::int64_t expected_tokens = 0);

  void append(std::span<const Token> tokens);

  Text text() const { return {tokens_.data(), static_cast<std::int64_t>(tokens_.size())}; }
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }
  std::span<const Token> tokens() const { return tokens_; }

  // How often `token` occurs.
  int frequency(Token token) const {
    return token >= 0 && static_cast<std::size_t>(token) < counts_.size() ? counts_[token] : 0;
  }

  // Places whose left context ends like `context`, at most `limit` of them: those that share four tokens from new to
  // old, then those that share two, then, when fewer than `enough` were found, those that share one.
  void find(std::span<const Token> context, const ContextHashes& hashes, int limit, int enough,
            std::uint32_t text_index, std::vector<Candidate>& found) const;

  // Has the processor fetch what `find` reads first.
  void prefetch(const ContextHashes& hashes) const;

 private:
  struct Chain {
    std::vector<std::int32_t> newest;    // by hash of the context: one past the last token of its newest occurrence
    std::vector<std::int32_t> previous;  // by the same place: the next older place of the same hash; 0 ends the chain
  };

  std::size_t slot(std::uint64_t hash) const { return static_cast<std::size_t>(hash >> (64 - bits_)); }
  // Puts the places from `first` up to the end into their chains.
  void link(std::int64_t first);
  void resize_chains(std::size_t slots);

  std::vector<Token> tokens_;
  std::vector<std::uint16_t> counts_;  // by token, saturating
  std::array<Chain, 3> chains_;        // in the order of ContextHashes::kOrders
  int bits_ = 0;                       // log2 of the number of slots
};

}  // namespace agentspec
