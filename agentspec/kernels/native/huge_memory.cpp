#include "huge_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace agentspec {
namespace {

constexpr size_t kHugePage = size_t{1} << 21;
constexpr size_t kCacheLine = 64;
// Much larger than most matrices, so that little is left over at the end of a block; what is not written takes no
// memory.
constexpr size_t kBlock = size_t{1} << 26;

size_t round_up(size_t bytes, size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

}  // namespace

HugeBuffer::HugeBuffer(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  bytes = round_up(bytes, alignment);
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, bytes)));
  if (memory_ == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kHugePage) madvise(memory_.get(), bytes, MADV_HUGEPAGE);
#endif
}

void HugeBuffer::Free::operator()(std::byte* memory) const { std::free(memory); }

std::byte* HugeMemory::take(size_t bytes) {
  bytes = round_up(bytes, kCacheLine);
  if (bytes > free_) {
    free_ = std::max(bytes, kBlock);
    next_ = blocks_.emplace_back(free_).data();
  }
  std::byte* piece = next_;
  next_ += bytes;
  free_ -= bytes;
  return piece;
}

}  // namespace agentspec
