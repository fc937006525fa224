// Sorts the positions of a token array by their left context.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace agentspec {

// The largest token id that can be sorted; three tokens and their "nothing here" value share one 64-bit key.
inline constexpr std::int32_t kMaxToken = (1 << 21) - 2;

// The positions of all tokens but separators, in the order that `Segment::order` describes.
// Throws std::invalid_argument for a token below kSeparator or above kMaxToken, or for 2^32 - 1 tokens and more.
// Time: near linear. Memory beside input and result: 16 bytes per position of the most frequent token.
std::vector<std::uint32_t> sort_contexts(std::span<const std::int32_t> tokens);

}  // namespace agentspec
