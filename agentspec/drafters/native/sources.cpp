#include "sources.hpp"

#include <algorithm>

namespace agentspec {
namespace {

constexpr std::int64_t kExpectedOutput = 2048;  // tokens; the request's text grows beyond it when it must
constexpr std::int64_t kSubstitutionAge = 3;    // a cursor left at most this long ago may skip what was replaced
constexpr std::int64_t kEchoAge = 8;            // a replacement that began earlier is followed by a cursor
constexpr std::int64_t kResumeAge = 64;         // a cursor left longer ago needs a match to be taken up again

}  // namespace

Sources::Sources(std::span<const Token> prompt)
    : request_(static_cast<std::int64_t>(prompt.size()) + kExpectedOutput),
      prompt_length_(static_cast<std::int64_t>(prompt.size())) {
  request_.append(prompt);
  texts_.push_back(request_.text());
  origins_.push_back(Origin::kPrompt);
}

std::uint32_t Sources::add_text(std::shared_ptr<const IndexedText> text, Origin origin) {
  const auto number = static_cast<std::uint32_t>(texts_.size());
  texts_.push_back(text->text());
  origins_.push_back(origin);
  extras_.push_back({number, std::move(text)});
  return number;
}

std::uint32_t Sources::add_segment(std::shared_ptr<const Segment> segment, std::vector<std::uint64_t> live) {
  const auto text = static_cast<std::uint32_t>(texts_.size());
  repositories_.push_back({text, RepositoryText(std::move(segment), std::move(live))});
  texts_.push_back(repositories_.back().indexed.text());
  origins_.push_back(Origin::kRepository);
  return text;
}

void Sources::set_edited(std::uint32_t text, std::int64_t start, std::int64_t end) {
  edited_.push_back({text, start, end});
}

void Sources::start_draft(std::uint32_t text, std::int64_t position) {
  starts_.push_back({text, position, 0});
  cursors_.follow({text, position, 0});
}

void Sources::commit(std::span<const Token> tokens) {
  const auto from = static_cast<std::size_t>(request_.size());
  request_.append(tokens);
  texts_[kRequestText] = request_.text();
  echoes_.commit(request_.tokens(), from, kRequestText);
  cursors_.advance(texts_, tokens);
  starts_.clear();
}

Origin Sources::origin_of(const Candidate& candidate) const {
  for (const Range& range : edited_) {
    if (candidate.text == range.text && candidate.position >= range.start && candidate.position < range.end) {
      return Origin::kEdited;
    }
  }
  if (candidate.text == kRequestText) return candidate.position < prompt_length_ ? Origin::kPrompt : Origin::kOutput;
  return origins_[candidate.text];
}

void Sources::complete(Candidate& candidate) const {
  if (echoes_.zone() == Zone::kReplacement) {
    const Place place = echoes_.redirect({candidate.text, candidate.position});
    if (place.text != candidate.text) {
      candidate.text = place.text;
      candidate.position = place.position;
      candidate.next = texts_[place.text].at(place.position);
    }
  }
  candidate.origin = origin_of(candidate);
  candidate.relation = cursors_.relation(candidate);
}

void Sources::find(std::span<const Token> context, const LookupLimits& limits, std::vector<Candidate>& found) const {
  const std::size_t first = found.size();
  const ContextHashes hashes(context);
  request_.prefetch(hashes);
  for (const Extra& extra : extras_) extra.indexed->prefetch(hashes);
  request_.find(context, hashes, limits.request, limits.enough, kRequestText, found);
  for (const Extra& extra : extras_) {
    extra.indexed->find(context, hashes, limits.extra, limits.extra_enough, extra.text, found);
  }
  for (const Repository& repository : repositories_) {
    const int shortest = static_cast<int>(found.size() - first) < limits.enough ? 1 : 2;
    repository.indexed.find(context, limits.repository, shortest, repository.text, found);
  }
  for (std::size_t i = first; i < found.size(); ++i) complete(found[i]);
}

void Sources::add(Place place, bool called_for, std::vector<Candidate>& found) const {
  const Token next = texts_[place.text].at(place.position);
  if (next < 0) return;
  for (Candidate& candidate : found) {
    if (candidate.text != place.text || candidate.position != place.position) continue;
    if (called_for) candidate.origin = Origin::kFormat;
    return;
  }
  Candidate candidate{.position = place.position, .next = next, .text = place.text,
                      .match = static_cast<std::uint16_t>(match_length(texts_[place.text], place.position, request())),
                      .origin = Origin::kFormat, .relation = Relation::kNone, .recency = 0, .weight = 0};
  complete(candidate);
  if (called_for) candidate.origin = Origin::kFormat;
  found.push_back(candidate);
}

void Sources::add_expected(std::vector<Candidate>& found) const {
  for (const CopyCursor& cursor : cursors_.all()) {
    if (cursor.age <= kResumeAge) add({cursor.text, cursor.position}, false, found);
    if (cursor.age > 0 && cursor.age <= kSubstitutionAge) add({cursor.text, cursor.position + cursor.age}, false, found);
  }
  const Place echoed = echoes_.going_on(request(), kEchoAge);
  if (echoed.position >= 0) add(echoed, true, found);
  for (const CopyCursor& start : starts_) add({start.text, start.position}, false, found);
}

void Sources::add_echoes(std::span<const Token> context, std::vector<Candidate>& found) const {
  std::vector<Called> called;
  echoes_.after(context, called);
  for (const Called& one : called) {
    add(one.place, true, found);
    if (one.matched == 0) continue;
    for (Candidate& candidate : found) {
      if (candidate.text != one.place.text || candidate.position != one.place.position) continue;
      candidate.match = std::max(candidate.match, static_cast<std::uint16_t>(one.matched));
    }
  }
}

bool Sources::advance(Candidate& candidate, Zone zone) const {
  Place place{candidate.text, candidate.position + 1};
  if (zone == Zone::kReplacement) place = echoes_.redirect(place);
  if (place.text != candidate.text) candidate.origin = origins_[place.text];
  candidate.text = place.text;
  candidate.position = place.position;
  candidate.next = texts_[place.text].at(place.position);
  if (candidate.match < kMaxMatch) ++candidate.match;
  return candidate.next >= 0;
}

bool Sources::drop_damaged() {
  const auto dropped = std::erase_if(repositories_, [&](const Repository& repository) {
    if (!repository.indexed.damaged()) return false;
    texts_[repository.text] = Text{};
    return true;
  });
  return dropped > 0;
}

}  // namespace agentspec
