#include "echoes.hpp"

#include <algorithm>

namespace agentspec {
namespace {

constexpr std::int64_t kUnknown = -1;

bool ends_with(std::span<const Token> context, const std::vector<Token>& marker) {
  return !marker.empty() && marker.size() <= context.size() &&
         std::equal(marker.rbegin(), marker.rend(), context.rbegin());
}

}  // namespace

void Echoes::add_pair(std::span<const Token> open, std::span<const Token> echo, bool first) {
  rules_.push_back({{open.begin(), open.end()}, {echo.begin(), echo.end()}, first, {0, kUnknown}});
}

void Echoes::add_marker(std::span<const Token> marker, Place place) {
  rules_.push_back({{}, {marker.begin(), marker.end()}, false, place});
}

void Echoes::commit(std::span<const Token> request, std::size_t from, std::uint32_t text) {
  for (Rule& rule : rules_) {
    if (rule.open.empty()) continue;
    bool open = rule.place.position != kUnknown;  // for rules that keep the first place
    for (std::size_t end = from + 1; end <= request.size(); ++end) {
      const Token last = request[end - 1];
      if (last == rule.open.back() && ends_with(request.first(end), rule.open)) {
        if (!rule.first || !open) rule.place = {text, static_cast<std::int64_t>(end)};
        open = true;
      } else if (rule.first && last == rule.echo.back() && ends_with(request.first(end), rule.echo)) {
        open = false;
      }
    }
  }
}

bool Echoes::may_follow(Token last) const {
  return std::any_of(rules_.begin(), rules_.end(), [&](const Rule& rule) {
    return rule.place.position != kUnknown && rule.echo.back() == last;
  });
}

void Echoes::after(std::span<const Token> context, std::vector<Place>& places) const {
  for (const Rule& rule : rules_) {
    if (rule.place.position != kUnknown && ends_with(context, rule.echo)) places.push_back(rule.place);
  }
}

}  // namespace agentspec
