// Where in the texts the output was being copied from, and where it left off.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "candidate.hpp"

namespace agentspec {

inline constexpr std::int64_t kMaxCursorAge = 1024;  // tokens; a cursor left for longer says nothing any more

struct CopyCursor {
  std::uint32_t text;
  std::int64_t position;  // the token that would come next if copying went on
  std::int64_t age;       // tokens generated since the output left the text here; 0: it is being followed
};

// A few most recent cursors. An edit is a copy with interruptions, so the place where a copy broke off is where it is
// likely to go on.
class CopyCursors {
 public:
  std::span<const CopyCursor> all() const { return cursors_; }

  // Moves every cursor that is being followed along `committed` and ages those that are left behind.
  void advance(std::span<const Text> texts, std::span<const Token> committed);

  // The output was copied from here: a cursor nearby in the same text moves, otherwise the stalest one gives way.
  void follow(CopyCursor cursor);

  // Age of the youngest cursor; kMaxCursorAge without any.
  std::int64_t youngest() const;

  Relation relation(const Candidate& candidate) const;

 private:
  std::vector<CopyCursor> cursors_;
};

// How many leading tokens of `committed` stand in `text` from `position` on.
std::int64_t common_prefix(const Text& text, std::int64_t position, std::span<const Token> committed);

}  // namespace agentspec
