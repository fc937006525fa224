// What a request has shown of single tokens: proposed in vain, supplied by the target instead.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "candidate.hpp"

namespace agentspec {

struct TokenNote {
  float refuted = 0;    // probability that drafts gave it in vain, halved whenever it was right after all
  float corrected = 0;  // how often it came where the draft said something else
};

// Small enough to stay in the processor's caches: every drafted node asks for several tokens.
class TokenNotes {
 public:
  TokenNotes() : notes_(kFirstSlots) {}

  TokenNote of(Token token) const {
    const Entry& entry = notes_[slot(token)];
    return entry.token == token ? entry.note : TokenNote{};
  }

  void judge(Token token, float probability, bool right) {
    TokenNote& note = at(token);
    note.refuted = right ? note.refuted / 2 : note.refuted + probability;
  }
  void correct(Token token) { at(token).corrected += 1; }

 private:
  static constexpr Token kFree = -1;
  static constexpr std::size_t kFirstSlots = 256;
  struct Entry {
    Token token = kFree;
    TokenNote note;
  };

  // Where the note of `token` is, or would be.
  std::size_t slot(Token token) const {
    std::size_t at = (static_cast<std::uint32_t>(token) * 2654435761u >> 8) & (notes_.size() - 1);
    while (notes_[at].token != token && notes_[at].token != kFree) at = (at + 1) & (notes_.size() - 1);
    return at;
  }

  TokenNote& at(Token token) {
    if (2 * count_ >= notes_.size()) grow();
    Entry& entry = notes_[slot(token)];
    if (entry.token == kFree) {
      entry.token = token;
      ++count_;
    }
    return entry.note;
  }

  void grow() {
    std::vector<Entry> old(2 * notes_.size());
    old.swap(notes_);
    for (const Entry& entry : old) {
      if (entry.token != kFree) notes_[slot(entry.token)] = entry;
    }
  }

  std::vector<Entry> notes_;          // open addressing; a power of two of slots, at most half of them taken
  std::size_t count_ = 0;
};

}  // namespace agentspec
