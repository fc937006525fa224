// Draft trees of a batch, laid out as SGLang's verify step wants them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Output = nb::ndarray<nb::numpy, T>;

template <typename T>
class Rows {
 public:
  Rows(std::vector<std::size_t> shape, T fill) : shape_(std::move(shape)) {
    std::size_t size = 1;
    for (const std::size_t extent : shape_) size *= extent;
    data_ = new T[std::max<std::size_t>(size, 1)];
    std::fill_n(data_, size, fill);
  }
  T* row(std::size_t number, std::size_t width) { return data_ + number * width; }
  Output<T> release() {
    return Output<T>(data_, shape_.size(), shape_.data(),
                     nb::capsule(data_, [](void* p) noexcept { delete[] static_cast<T*>(p); }));
  }

 private:
  std::vector<std::size_t> shape_;
  T* data_;
};

void check(std::size_t request, const Input<std::int32_t>& tokens, const Input<std::int32_t>& parents,
           std::size_t width) {
  const std::string where = "tree " + std::to_string(request) + ": ";
  if (tokens.shape(0) != parents.shape(0)) throw std::invalid_argument(where + "tokens and parents differ in length");
  if (tokens.shape(0) + 1 > width) {
    throw std::invalid_argument(where + std::to_string(tokens.shape(0)) + " nodes and the root do not fit a width of " +
                                std::to_string(width));
  }
  for (std::size_t node = 0; node < tokens.shape(0); ++node) {
    const std::int32_t parent = parents.data()[node];
    if (parent < -1 || parent >= static_cast<std::int32_t>(node)) {
      throw std::invalid_argument(where + "node " + std::to_string(node) + " has parent " + std::to_string(parent));
    }
    if (tokens.data()[node] < 0) throw std::invalid_argument(where + "node " + std::to_string(node) + " has no token");
  }
}

nb::tuple pack(const std::vector<Input<std::int32_t>>& tokens, const std::vector<Input<std::int32_t>>& parents,
               Input<std::int64_t> roots, Input<std::int64_t> lengths, std::size_t width) {
  const std::size_t batch = tokens.size();
  if (parents.size() != batch || roots.shape(0) != batch || lengths.shape(0) != batch) {
    throw std::invalid_argument("tokens, parents, roots and lengths are of different batches");
  }
  if (width == 0) throw std::invalid_argument("a width of 0 leaves no place for the root");
  for (std::size_t b = 0; b < batch; ++b) check(b, tokens[b], parents[b], width);

  Rows<std::int64_t> node_tokens({batch, width}, 0), positions({batch, width}, 0);
  Rows<std::int64_t> first_child({batch, width}, -1), next_sibling({batch, width}, -1);
  Rows<bool> mask({batch, width, width}, false);
  for (std::size_t b = 0; b < batch; ++b) {
    std::int64_t* token = node_tokens.row(b, width);
    std::int64_t* position = positions.row(b, width);
    std::int64_t* child = first_child.row(b, width);
    std::int64_t* sibling = next_sibling.row(b, width);
    bool* visible = mask.row(b, width * width);
    const std::size_t nodes = tokens[b].shape(0) + 1;
    std::fill_n(token, width, roots.data()[b]);
    std::fill_n(position, width, lengths.data()[b]);
    for (std::size_t node = 0; node < width; ++node) visible[node * width + node] = true;
    for (std::size_t node = 1; node < nodes; ++node) {
      const std::size_t parent = parents[b].data()[node - 1] + 1;
      token[node] = tokens[b].data()[node - 1];
      position[node] = position[parent] + 1;
      for (std::size_t seen = 0; seen <= parent; ++seen) {
        visible[node * width + seen] |= visible[parent * width + seen];
      }
    }
    for (std::size_t node = nodes; node-- > 1;) {
      const std::size_t parent = parents[b].data()[node - 1] + 1;
      sibling[node] = child[parent];
      child[parent] = static_cast<std::int64_t>(node);
    }
  }
  return nb::make_tuple(node_tokens.release(), positions.release(), mask.release(), first_child.release(),
                        next_sibling.release());
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Draft trees of a batch, laid out as SGLang's verify step wants them.";
  m.def("pack", &pack, "tokens"_a, "parents"_a, "roots"_a, "lengths"_a, "width"_a,
        "Lay out one tree per request: (tokens, positions, mask, first_child, next_sibling).\n\n"
        "tokens, parents: per request int32[N], as in DraftTree; roots: int64[B], the last committed tokens;\n"
        "lengths: int64[B], committed tokens before them; width: nodes per request, the root and padding included.\n"
        "Returns int64[B, W] twice, bool[B, W, W] (row i marks the nodes that node i sees), int64[B, W] twice (-1:\n"
        "none). Node 0 is the root. No link leads to a padding node, which sees the prefix and itself only.");
}
