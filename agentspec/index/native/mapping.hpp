// A whole file mapped read-only, safe to read whatever happens to the file.
#pragma once

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>

namespace agentspec {

// An index file that cannot be used; the message names the file and says why.
class SegmentError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reading a mapped page whose file was truncated raises SIGBUS, which would end the process. A handler puts a page of
// zeros there instead and marks the mapping damaged, so a read always returns, and readers ask `damaged()` afterwards.
class Mapping {
 public:
  // Throws SegmentError when the file cannot be opened or is empty.
  explicit Mapping(const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  // True once a read met a page that the file no longer backs: what was read since may be zeros.
  bool damaged() const { return damaged_.load(std::memory_order_acquire); }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::atomic<bool> damaged_{false};
};

}  // namespace agentspec
