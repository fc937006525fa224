// What every source yields: places in texts whose left context ends like the text being generated.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace agentspec {

using Token = std::int32_t;  // negative: a boundary between documents, never drafted

inline constexpr int kMaxMatch = 64;  // tokens of left context that a candidate's match is measured to

// Where a candidate's text comes from, as finely as the ranker tells them apart.
enum class Origin : std::uint8_t {
  kPrompt, kOutput, kRepository, kEdited, kView, kPrediction, kFormat, kProse
};
inline constexpr int kOrigins = 8;

// Values of agentspec.drafters.tree.Source.
enum class Source : std::uint8_t {
  kRequest, kRepository, kPrediction, kEdit, kFormat, kSyntax, kEagle3
};
inline constexpr int kSources = 7;

inline constexpr std::array<Source, kOrigins> kSourceOf{
    Source::kRequest, Source::kRequest, Source::kRepository, Source::kEdit,
    Source::kEdit,    Source::kPrediction, Source::kFormat,   Source::kFormat};

// The client's prediction is a version of the edited file, and weighs like it: recorded edits hold no predictions to
// learn from.
inline constexpr Origin ranked_as(Origin origin) { return origin == Origin::kPrediction ? Origin::kEdited : origin; }

// Where a candidate lies relative to the nearest copy cursor of its text (see copy_cursors.hpp).
enum class Relation : std::uint8_t {
  kNone,        // the text has no cursor
  kFollows,     // at a cursor that is being followed
  kResumes,     // at a cursor that was left
  kJustAhead, kAhead, kFarAhead,
  kJustBehind, kBehind,
  kElsewhere
};
inline constexpr int kRelations = 9;

// A place in one of the session's texts.
struct Place {
  std::uint32_t text;
  std::int64_t position;
};

// A contiguous run of tokens that candidates point into; negative tokens separate documents.
struct Text {
  const Token* tokens = nullptr;
  std::int64_t size = 0;

  // The token at `position`; negative outside the text.
  Token at(std::int64_t position) const { return position >= 0 && position < size ? tokens[position] : -1; }
};

// A place in a text: the token at `position` is what it proposes next.
struct Candidate {
  std::int64_t position;
  Token next;
  std::uint32_t text;      // index into the session's texts
  std::uint16_t match;     // tokens before `position` that equal the end of the context
  Origin origin;
  Relation relation;
  std::uint8_t recency;    // how many candidates of the same text are newer, in buckets (see recency_bucket)
  float weight;            // unnormalised probability, given by the ranker
};

// The two tokens before `end`, the last one in the higher half.
inline std::uint64_t last_two(const Token* end) {
  static_assert(std::endian::native == std::endian::little);
  std::uint64_t pair;
  std::memcpy(&pair, end - 2, sizeof(pair));
  return pair;
}

// How many tokens before `left` equal those before `right`, at most `limit`; `known` of them are known to.
inline int common_suffix(const Token* left, const Token* right, std::int64_t limit, int known = 0) {
  int length = known;
  for (; length + 2 <= limit; length += 2) {
    const std::uint64_t differences = last_two(left - length) ^ last_two(right - length);
    if (differences != 0) return length + std::countl_zero(differences) / 32;
  }
  return length < limit && left[-1 - length] == right[-1 - length] ? length + 1 : length;
}

// Number of tokens before `position` that equal the end of `context`, at most kMaxMatch; `known` of them are known to.
inline int match_length(const Text& text, std::int64_t position, std::span<const Token> context, int known = 0) {
  const std::int64_t limit = std::min<std::int64_t>({position, static_cast<std::int64_t>(context.size()), kMaxMatch});
  return common_suffix(text.tokens + position, context.data() + context.size(), limit, known);
}

inline constexpr int kRecencies = 5;

// 0: the newest place, 1: the second, 2: up to the fourth, 3: up to the sixteenth, 4: older.
inline std::uint8_t recency_bucket(int newer) {
  if (newer < 2) return static_cast<std::uint8_t>(newer);
  return newer < 4 ? 2 : newer < 16 ? 3 : 4;
}

}  // namespace agentspec
