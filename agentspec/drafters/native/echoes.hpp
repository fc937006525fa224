// Markers of edit formats after which a known text is likely to come: the block just searched, the file itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "candidate.hpp"

namespace agentspec {

// A place in one of the session's texts.
struct Place {
  std::uint32_t text;
  std::int64_t position;
};

class Echoes {
 public:
  // After `echo`, what followed the latest `open` in the output is likely to come again: the replacement begins like
  // the text it replaces. With `first`, what followed the first `open` since the last `echo`.
  void add_pair(std::span<const Token> open, std::span<const Token> echo, bool first);

  // After `marker`, the text at `place` is likely to come.
  void add_marker(std::span<const Token> marker, Place place);

  // Notes the markers in request[from...]; `text` names the request.
  void commit(std::span<const Token> request, std::size_t from, std::uint32_t text);

  // Whether some marker ends with `last`: a cheap test before `after`.
  bool may_follow(Token last) const;
  // The places that are likely to follow `context`.
  void after(std::span<const Token> context, std::vector<Place>& places) const;

 private:
  struct Rule {
    std::vector<Token> open;  // empty: the place is fixed
    std::vector<Token> echo;
    bool first;
    Place place;              // position < 0: not known yet
  };
  std::vector<Rule> rules_;
};

}  // namespace agentspec
