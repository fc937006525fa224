// Markers of edit formats after which a known text is likely to come: the block just searched, the file itself.
#pragma once

#include <bitset>
#include <cstdint>
#include <span>
#include <vector>

#include "candidate.hpp"

namespace agentspec {

// The parts of an edit that names a text and then its replacement.
enum class Zone : std::uint8_t { kNone, kSearched, kReplacement };

// Tokens of one format's markers. `boundary` is everything between the searched text and its replacement and ends like
// `echo`, its last part; `close` comes after the replacement.
struct PairMarkers {
  std::vector<Token> open;
  std::vector<Token> echo;
  std::vector<Token> boundary;
  std::vector<Token> close;
};

// A place that a format calls for, and how many tokens of context say so (0: as many as match there).
struct Called {
  Place place;
  int matched;
};

class Echoes {
 public:
  // After `echo`, what followed the latest `open` in the output is likely to come again: the replacement begins like
  // the text it replaces. Where that text ends, `close` is likely, which also stands at `close_place`.
  void add_pair(PairMarkers markers, Place close_place);

  // After `marker`, the text at `place` is likely to come.
  void add_marker(std::span<const Token> marker, Place place);

  // Notes the markers in request[from...]; `text` names the request.
  void commit(std::span<const Token> request, std::size_t from, std::uint32_t text);

  Zone zone() const { return zone_; }
  // Where in the request the zone began.
  std::int64_t zone_start() const { return zone_start_; }

  // The pair whose searched text began last, in the order of add_pair; -1: none so far.
  int latest_pair() const { return latest_pair_; }

  // Where the replacement goes on like the text it replaces, if it has not left that yet and began `most` tokens ago at
  // most; position < 0: nowhere.
  Place going_on(std::span<const Token> request, std::int64_t most) const;

  // Whether some marker may end with `last`: a cheap test before `after`.
  bool may_follow(Token last) const { return endings_[bit_of(last)]; }
  // The places that are likely to follow `context`.
  void after(std::span<const Token> context, std::vector<Called>& places) const;

  // Where to go on instead of `place`, if the replaced text ends there.
  Place redirect(Place place) const {
    return place.position == boundary_.position && place.text == boundary_.text ? close_ : place;
  }

 private:
  struct Pair {
    PairMarkers markers;
    Place close_place;
    Place opened;  // position < 0: not seen yet
  };
  struct Marker {
    std::vector<Token> tokens;
    Place place;
  };

  static constexpr std::size_t kEndings = 512;
  static std::size_t bit_of(Token token) { return static_cast<std::uint32_t>(token) % kEndings; }

  void note(Pair& pair, std::span<const Token> request, std::uint32_t text);

  std::bitset<kEndings> endings_;  // of the last tokens of all markers; most tokens end none of them
  std::vector<Pair> pairs_;
  std::vector<Marker> markers_;
  Zone zone_ = Zone::kNone;
  std::int64_t zone_start_ = 0;
  int latest_pair_ = -1;
  Place repeated_{0, -1};  // in the zone kReplacement, where the searched text began
  Place boundary_{0, -1};  // in the zone kReplacement, where the searched text ended
  Place close_{0, -1};
};

}  // namespace agentspec
