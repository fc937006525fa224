#include "packed_matrix.hpp"

#include <algorithm>

namespace agentspec {
namespace {

// Copies source rows into panel order. `row_of(panel, column)` is the source row, -1 for padding.
template <class Weight, class RowOf>
void pack_panels(const Weight* source, Weight* target, int64_t panels, int64_t depth, int64_t group, RowOf row_of) {
  for (int64_t panel = 0; panel < panels; ++panel) {
    for (int64_t column = 0; column < kPanelColumns; ++column) {
      const int64_t strip = panel * (kPanelColumns / kStripColumns) + column / kStripColumns;
      Weight* to = target + strip * depth * kStripColumns + column % kStripColumns * group;
      const int64_t row = row_of(panel, column);
      for (int64_t k = 0; k < depth; ++k) {
        to[k / group * group * kStripColumns + k % group] = row < 0 ? Weight{0} : source[row * depth + k];
      }
    }
  }
}

}  // namespace

PackedMatrix::PackedMatrix(const void* weights, const float* bias, int64_t columns, int64_t depth, Element element,
                           bool gated, HugeMemory& memory)
    : columns_(columns), depth_(depth), panels_((columns + kPanelColumns - 1) / kPanelColumns) {
  const auto row_of = [&](int64_t panel, int64_t column) {
    if (!gated) {
      const int64_t row = panel * kPanelColumns + column;
      return row < columns ? row : -1;
    }
    constexpr int64_t half = kPanelColumns / 2;
    return (column < half ? 0 : columns / 2) + panel * half + column % half;
  };
  const size_t size = element == Element::kFloat32 ? sizeof(float) : sizeof(uint16_t);
  panel_bytes_ = static_cast<size_t>(depth * kPanelColumns) * size;
  memory_ = memory.take(panel_bytes_ * panels_);
  if (element == Element::kFloat32) {
    pack_panels(static_cast<const float*>(weights), reinterpret_cast<float*>(memory_), panels_, depth,
                1, row_of);
  } else {
    pack_panels(static_cast<const uint16_t*>(weights), reinterpret_cast<uint16_t*>(memory_), panels_,
                depth, 2, row_of);
  }
  if (bias != nullptr) {
    bias_.resize(panels_ * kPanelColumns);
    for (int64_t index = 0; index < panels_ * kPanelColumns; ++index) {
      const int64_t row = row_of(index / kPanelColumns, index % kPanelColumns);
      bias_[index] = row < 0 ? 0.0f : bias[row];
    }
  }
}

int64_t PackedMatrix::width(int64_t index) const {
  return std::min<int64_t>(kPanelColumns, columns_ - index * kPanelColumns);
}

}  // namespace agentspec
