// What the Python bindings share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

namespace agentspec {

using Floats = nanobind::ndarray<const float, nanobind::c_contig, nanobind::device::cpu>;
using MutableFloats = nanobind::ndarray<float, nanobind::c_contig, nanobind::device::cpu>;
using Integers = nanobind::ndarray<const int64_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Mask = nanobind::ndarray<const bool, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
// float32, or bfloat16 seen as 16-bit integers.
using Stored = nanobind::ndarray<nanobind::ro, nanobind::c_contig, nanobind::device::cpu>;
using MutableStored = nanobind::ndarray<nanobind::c_contig, nanobind::device::cpu>;

inline void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

// Adds drafting with an EAGLE-3 head to the module.
void bind_drafting(nanobind::module_& module);

}  // namespace agentspec
