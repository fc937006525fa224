#include "copy_cursors.hpp"

#include <algorithm>
#include <cstdlib>

namespace agentspec {
namespace {

// All distances in tokens.
constexpr std::size_t kMaxCursors = 8;
constexpr std::int64_t kSamePlace = 512;     // a new copy this near continues an old one
constexpr std::int64_t kJustAhead = 16;
constexpr std::int64_t kAhead = 128;
constexpr std::int64_t kFarAhead = 1024;
constexpr std::int64_t kJustBehind = 32;
constexpr std::int64_t kBehind = 512;

}  // namespace

std::int64_t common_prefix(const Text& text, std::int64_t position, std::span<const Token> committed) {
  std::int64_t shared = 0;
  while (shared < static_cast<std::int64_t>(committed.size()) && text.at(position + shared) == committed[shared]) {
    ++shared;
  }
  return shared;
}

void CopyCursors::advance(std::span<const Text> texts, std::span<const Token> committed) {
  const auto count = static_cast<std::int64_t>(committed.size());
  for (CopyCursor& cursor : cursors_) {
    if (cursor.age == 0) {
      const std::int64_t shared = common_prefix(texts[cursor.text], cursor.position, committed);
      cursor.position += shared;
      cursor.age = count - shared;
    } else {
      cursor.age += count;
    }
  }
  std::erase_if(cursors_, [](const CopyCursor& cursor) { return cursor.age > kMaxCursorAge; });
}

void CopyCursors::follow(CopyCursor cursor) {
  CopyCursor* nearest = nullptr;
  for (CopyCursor& other : cursors_) {
    if (other.text != cursor.text || std::abs(other.position - cursor.position) > kSamePlace) continue;
    if (!nearest || std::abs(other.position - cursor.position) < std::abs(nearest->position - cursor.position)) {
      nearest = &other;
    }
  }
  if (nearest) {
    *nearest = cursor;
  } else if (cursors_.size() < kMaxCursors) {
    cursors_.push_back(cursor);
  } else {
    *std::max_element(cursors_.begin(), cursors_.end(),
                      [](const CopyCursor& a, const CopyCursor& b) { return a.age < b.age; }) = cursor;
  }
}

std::int64_t CopyCursors::youngest() const {
  std::int64_t youngest = kMaxCursorAge;
  for (const CopyCursor& cursor : cursors_) youngest = std::min(youngest, cursor.age);
  return youngest;
}

Relation CopyCursors::relation(const Candidate& candidate) const {
  const CopyCursor* nearest = nullptr;
  std::int64_t ahead = 0;
  for (const CopyCursor& cursor : cursors_) {
    if (cursor.text != candidate.text) continue;
    const std::int64_t distance = candidate.position - cursor.position;
    if (!nearest || std::abs(distance) < std::abs(ahead)) {
      nearest = &cursor;
      ahead = distance;
    }
  }
  if (!nearest) return Relation::kNone;
  if (ahead == 0) return nearest->age == 0 ? Relation::kFollows : Relation::kResumes;
  if (ahead > 0) {
    if (ahead <= kJustAhead) return Relation::kJustAhead;
    if (ahead <= kAhead) return Relation::kAhead;
    return ahead <= kFarAhead ? Relation::kFarAhead : Relation::kElsewhere;
  }
  if (ahead >= -kJustBehind) return Relation::kJustBehind;
  return ahead >= -kBehind ? Relation::kBehind : Relation::kElsewhere;
}

}  // namespace agentspec
