#include "packed_matrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

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

float to_float(float weight) { return weight; }
float to_float(uint16_t bfloat16) {
  const uint32_t bits = uint32_t{bfloat16} << 16;
  float weight;
  std::memcpy(&weight, &bits, sizeof weight);
  return weight;
}

// Rounds rows to bytes kByteOffset above whole numbers of up to 127, each row in units of its own, its scale.
template <class Weight>
std::vector<uint8_t> to_bytes(const Weight* source, int64_t rows, int64_t depth, float* scales) {
  constexpr float kGreatest = 127.0f;
  std::vector<uint8_t> bytes(rows * depth);
  for (int64_t row = 0; row < rows; ++row) {
    const Weight* from = source + row * depth;
    float peak = 0.0f;
    for (int64_t k = 0; k < depth; ++k) peak = std::max(peak, std::abs(to_float(from[k])));
    scales[row] = peak / kGreatest;
    const float inverse = peak > 0.0f ? kGreatest / peak : 0.0f;
    for (int64_t k = 0; k < depth; ++k) {
      bytes[row * depth + k] = static_cast<uint8_t>(std::lrint(to_float(from[k]) * inverse) + kByteOffset);
    }
  }
  return bytes;
}

}  // namespace

PackedMatrix::PackedMatrix(const void* weights, const float* bias, int64_t columns, int64_t depth, Element element,
                           const Packing& packing, HugeMemory& memory)
    : columns_(columns), depth_(depth), panels_((columns + kPanelColumns - 1) / kPanelColumns) {
  const auto row_of = [&](int64_t panel, int64_t column) {
    if (!packing.gated) {
      const int64_t row = panel * kPanelColumns + column;
      return row < columns ? row : -1;
    }
    constexpr int64_t half = kPanelColumns / 2;
    return (column < half ? 0 : columns / 2) + panel * half + column % half;
  };
  // One number a column, in the order of the panels.
  const auto of_columns = [&](const float* numbers) {
    std::vector<float> ordered(panels_ * kPanelColumns);
    for (int64_t index = 0; index < panels_ * kPanelColumns; ++index) {
      const int64_t row = row_of(index / kPanelColumns, index % kPanelColumns);
      ordered[index] = row < 0 ? 0.0f : numbers[row];
    }
    return ordered;
  };
  const auto pack = [&](const auto* source, int64_t group) {
    panel_bytes_ = static_cast<size_t>(depth * kPanelColumns) * sizeof *source;
    memory_ = memory.take(panel_bytes_ * panels_);
    using Weight = std::remove_const_t<std::remove_pointer_t<decltype(source)>>;
    pack_panels(source, reinterpret_cast<Weight*>(memory_), panels_, depth, group, row_of);
  };
  const auto* floats = static_cast<const float*>(weights);
  const auto* halves = static_cast<const uint16_t*>(weights);
  const bool single = element == Element::kFloat32;
  if (packing.bytes) {
    std::vector<float> scales(columns);
    const auto rounded =
        single ? to_bytes(floats, columns, depth, scales.data()) : to_bytes(halves, columns, depth, scales.data());
    pack(rounded.data(), 4);
    scales_ = of_columns(scales.data());
  } else if (single) {
    pack(floats, 1);
  } else {
    pack(halves, 2);
  }
  if (bias != nullptr) bias_ = of_columns(bias);
}

int64_t PackedMatrix::width(int64_t index) const {
  return std::min<int64_t>(kPanelColumns, columns_ - index * kPanelColumns);
}

}  // namespace agentspec
