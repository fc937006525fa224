#include "checksum.hpp"

#include <bit>
#include <cstring>

namespace agentspec {
namespace {

constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio

std::uint64_t mix(std::uint64_t state, std::uint64_t word) { return std::rotl((state ^ word) * kOdd, 29); }

}  // namespace

std::uint64_t checksum(const void* data, std::size_t size, std::uint64_t seed) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::uint64_t lanes[4] = {seed, seed + kOdd, seed ^ kOdd, ~seed};
  std::size_t offset = 0;
  for (; offset + sizeof(lanes) <= size; offset += sizeof(lanes)) {
    std::uint64_t words[4];
    std::memcpy(words, bytes + offset, sizeof(words));
    for (int lane = 0; lane < 4; ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
  }
  std::uint64_t state = size;
  for (const std::uint64_t lane : lanes) state = mix(state, lane);
  for (; offset < size; ++offset) state = mix(state, bytes[offset]);
  state ^= state >> 32;
  return state * kOdd;
}

}  // namespace agentspec
