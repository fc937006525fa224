// What a request has shown of single tokens: named in its prose, proposed in vain, supplied by the target instead.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "candidate.hpp"

namespace agentspec {

struct TokenNote {
  bool named = false;
  float refuted = 0;    // probability that drafts gave it in vain, halved whenever it was right after all
  float corrected = 0;  // how often it came where the draft said something else
};

class TokenNotes {
 public:
  TokenNote of(Token token) const {
    return token >= 0 && static_cast<std::size_t>(token) < notes_.size() ? notes_[token] : TokenNote{};
  }

  void name(Token token) {
    if (token >= 0) at(token).named = true;
  }
  void judge(Token token, float probability, bool right) {
    TokenNote& note = at(token);
    note.refuted = right ? note.refuted / 2 : note.refuted + probability;
  }
  void correct(Token token) { at(token).corrected += 1; }

 private:
  TokenNote& at(Token token) {
    const auto index = static_cast<std::size_t>(token);
    if (index >= notes_.size()) notes_.resize(index * 5 / 4 + 64);
    return notes_[index];
  }

  std::vector<TokenNote> notes_;  // by token, as far as any has been noted
};

}  // namespace agentspec
