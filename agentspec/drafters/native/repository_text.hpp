// The repository as a source: the places of one index segment whose left context is nearest to the context.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "candidate.hpp"
#include "index/native/segment.hpp"

namespace agentspec {

// One segment as one request sees it. The segment is shared and read-only; the rest belongs to the session.
class RepositoryText {
 public:
  // `live`: bit d % 64 of word d / 64 is set when document d may be drafted from.
  RepositoryText(std::shared_ptr<const Segment> segment, std::vector<std::uint64_t> live);

  Text text() const { return {segment_->tokens(), segment_->size()}; }
  bool damaged() const { return segment_->damaged(); }

  // At most `limit` places by decreasing length of the match, of those that share `shortest` tokens at least.
  // Finds nothing once the segment's file was damaged.
  void find(std::span<const Token> context, int limit, int shortest, std::uint32_t text_index,
            std::vector<Candidate>& found) const;

 private:
  struct Insertion {
    std::int64_t point = 0;  // index into the order of the first position whose left context does not sort before
    int match_below;         // tokens shared by the position before `point`; -1: there is none
    int match_above;         // tokens shared by the position at `point`; -1: there is none
  };

  Insertion insertion_point(std::span<const Token> context) const;
  bool is_live(std::int64_t position) const;

  std::shared_ptr<const Segment> segment_;
  std::vector<std::uint64_t> live_;  // empty when all are live
};

}  // namespace agentspec
