// Memory on huge pages: weights are streamed once a pass, and small pages would cost a walk every 4 KiB.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace agentspec {

// A block of its own, aligned to huge pages where it fills one.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Throws std::bad_alloc.
  explicit HugeBuffer(size_t bytes);
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

// Hands out pieces of a few large blocks, one behind the other. A single matrix may be smaller than a huge page, a
// model's matrices together are not; and what is read in the order in which it was taken is read from neighbouring
// addresses.
class HugeMemory {
 public:
  // `bytes` that begin on a cache line and live as long as this object. Throws std::bad_alloc.
  std::byte* take(size_t bytes);

 private:
  std::vector<HugeBuffer> blocks_;
  size_t free_ = 0;  // bytes at the end of the last block
  std::byte* next_ = nullptr;
};

}  // namespace agentspec
