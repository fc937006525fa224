// A fast checksum against accidental damage. Not cryptographic: whole files are verified by their content address.
#pragma once

#include <cstddef>
#include <cstdint>

namespace agentspec {

// Continues from `seed`; the result depends on how the bytes were divided into calls.
std::uint64_t checksum(const void* data, std::size_t size, std::uint64_t seed);

}  // namespace agentspec
