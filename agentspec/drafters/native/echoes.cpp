#include "echoes.hpp"

#include <algorithm>

namespace agentspec {
namespace {

constexpr std::int64_t kUnknown = -1;

bool ends_with(std::span<const Token> context, const std::vector<Token>& marker) {
  return !marker.empty() && marker.size() <= context.size() && marker.back() == context.back() &&
         std::equal(marker.rbegin(), marker.rend(), context.rbegin());
}

}  // namespace

void Echoes::add_pair(PairMarkers markers, Place close_place) {
  for (const std::vector<Token>* marker : {&markers.open, &markers.echo, &markers.boundary, &markers.close}) {
    if (!marker->empty()) endings_.set(bit_of(marker->back()));
  }
  pairs_.push_back({std::move(markers), close_place, {0, kUnknown}});
}

void Echoes::add_marker(std::span<const Token> marker, Place place) {
  endings_.set(bit_of(marker.back()));
  markers_.push_back({{marker.begin(), marker.end()}, place});
}

void Echoes::note(Pair& pair, std::span<const Token> request, std::uint32_t text) {
  const auto end = static_cast<std::int64_t>(request.size());
  if (ends_with(request, pair.markers.open)) {
    pair.opened = {text, end};
    latest_pair_ = static_cast<int>(&pair - pairs_.data());
    zone_ = Zone::kSearched;
    zone_start_ = end;
    boundary_.position = kUnknown;
  } else if (zone_ == Zone::kSearched && pair.opened.position != kUnknown && ends_with(request, pair.markers.echo)) {
    zone_ = Zone::kReplacement;
    zone_start_ = end;
    repeated_ = pair.opened;
    if (pair.close_place.position != kUnknown && ends_with(request, pair.markers.boundary)) {
      boundary_ = {text, end - static_cast<std::int64_t>(pair.markers.boundary.size())};
      close_ = pair.close_place;
    }
  } else if (zone_ == Zone::kReplacement && ends_with(request, pair.markers.close)) {
    zone_ = Zone::kNone;
    zone_start_ = end;
    boundary_.position = kUnknown;
  }
}

void Echoes::commit(std::span<const Token> request, std::size_t from, std::uint32_t text) {
  for (std::size_t end = from + 1; end <= request.size(); ++end) {
    if (!endings_[bit_of(request[end - 1])]) continue;
    for (Pair& pair : pairs_) note(pair, request.first(end), text);
  }
}

Place Echoes::going_on(std::span<const Token> request, std::int64_t most) const {
  const std::int64_t since = static_cast<std::int64_t>(request.size()) - zone_start_;
  if (zone_ != Zone::kReplacement || since > most || repeated_.position + since > zone_start_) return {0, kUnknown};
  const auto repeated = request.begin() + repeated_.position;
  const auto said = request.begin() + zone_start_;
  if (!std::equal(said, request.end(), repeated)) return {0, kUnknown};
  return {repeated_.text, repeated_.position + since};
}

void Echoes::after(std::span<const Token> context, std::vector<Called>& places) const {
  for (const Pair& pair : pairs_) {
    if (pair.opened.position != kUnknown && ends_with(context, pair.markers.echo)) places.push_back({pair.opened, 0});
  }
  for (const Marker& marker : markers_) {
    if (ends_with(context, marker.tokens)) {
      places.push_back({marker.place, static_cast<int>(marker.tokens.size())});
    }
  }
}

}  // namespace agentspec
