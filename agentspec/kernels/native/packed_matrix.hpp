// Weight matrices in the order in which the kernels read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "huge_memory.hpp"
#include "kernels.hpp"

namespace agentspec {

struct Packing {
  bool gated;  // the first half of the outputs are gates of the second half, and each panel gets equally many of both
  bool bytes;  // the weights are rounded to 8 bits, each output in units of its own
};

// A matrix [columns, depth] (PyTorch's order: one row for each output), cut into panels of kPanelColumns outputs.
// Panels are padded with zero columns.
class PackedMatrix {
 public:
  PackedMatrix() = default;
  // `weights` is row-major: floats, or bfloat16 bits, as `element` says. `bias` has `columns` floats or is null.
  // The panels lie in `memory`, one behind the other, and are valid as long as it is.
  PackedMatrix(const void* weights, const float* bias, int64_t columns, int64_t depth, Element element,
               const Packing& packing, HugeMemory& memory);

  int64_t columns() const { return columns_; }
  int64_t depth() const { return depth_; }
  int64_t panels() const { return panels_; }
  const void* panel(int64_t index) const { return memory_ + index * panel_bytes_; }
  const float* bias(int64_t index) const { return bias_.empty() ? nullptr : bias_.data() + index * kPanelColumns; }
  const float* scales(int64_t index) const { return bytes() ? scales_.data() + index * kPanelColumns : nullptr; }
  // Whether the weights are of 8 bits.
  bool bytes() const { return !scales_.empty(); }
  // Real columns of a panel.
  int64_t width(int64_t index) const;

 private:
  int64_t columns_ = 0, depth_ = 0, panels_ = 0;
  size_t panel_bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::vector<float> bias_, scales_;
};

}  // namespace agentspec
