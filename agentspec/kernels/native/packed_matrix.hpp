// Weight matrices in the order in which the kernels read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.hpp"

namespace agentspec {

// Memory aligned to huge pages: weights are streamed once a step, and small pages would cost a walk every 4 KiB.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  explicit HugeBuffer(size_t bytes);
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

// A matrix [columns, depth] (PyTorch's order: one row for each output), cut into panels of kPanelColumns outputs.
// Panels are padded with zero columns.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `weights` is row-major: floats, or bfloat16 bits, as `element` says. `bias` has `columns` floats or is null.
  // `gated`: the first half of the outputs are gates of the second half, and each panel gets equally many of both.
  PackedMatrix(const void* weights, const float* bias, int64_t columns, int64_t depth, Element element, bool gated);

  int64_t columns() const { return columns_; }
  int64_t depth() const { return depth_; }
  int64_t panels() const { return panels_; }
  const void* panel(int64_t index) const { return panels_memory_.data() + index * panel_bytes_; }
  const float* bias(int64_t index) const { return bias_.empty() ? nullptr : bias_.data() + index * kPanelColumns; }
  // Real columns of a panel.
  int64_t width(int64_t index) const;

 private:
  int64_t columns_ = 0, depth_ = 0, panels_ = 0;
  size_t panel_bytes_ = 0;
  HugeBuffer panels_memory_;
  std::vector<float> bias_;
};

}  // namespace agentspec
