// Python bindings of drafting with an EAGLE-3 head.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <new>
#include <vector>

#include "bindings.hpp"
#include "draft_head.hpp"
#include "tree_growth.hpp"

namespace agentspec {
namespace nb = nanobind;

namespace {

using Probabilities = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Tokens = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A numpy array of its own with what `numbers` holds.
template <class T, class Number>
nb::object to_numpy(const std::vector<Number>& numbers, std::initializer_list<size_t> shape) {
  auto* copy = new T[std::max<size_t>(1, numbers.size())];
  std::copy(numbers.begin(), numbers.end(), copy);
  nb::capsule owner(copy, [](void* memory) noexcept { delete[] static_cast<T*>(memory); });
  return nb::cast(nb::ndarray<nb::numpy, T>(copy, shape, owner));
}

template <class T>
nb::object to_numpy(const std::vector<T>& numbers) {
  return to_numpy<T>(numbers, {numbers.size()});
}

void require_within(const int64_t* tokens, int64_t count, int64_t vocabulary) {
  for (int64_t i = 0; i < count; ++i) {
    require(tokens[i] >= 0 && tokens[i] < vocabulary, "a token lies outside the vocabulary");
  }
}

void new_head(DraftHead* self, Decoder& decoder, const Stored& embedding, const Integers& draft_to_target,
              const Floats& frequencies, float rope_scale) {
  const DecoderShape& shape = decoder.shape();
  require(embedding.ndim() == 2 && static_cast<int64_t>(embedding.shape(1)) == shape.hidden &&
              embedding.dtype().bits == (decoder.element() == Element::kFloat32 ? 32 : 16),
          "the embedding does not fit the head");
  require(decoder.reads_embeddings() && decoder.fusion_depth() > 0, "the decoder is no draft head's");
  require(static_cast<int64_t>(draft_to_target.size()) == decoder.vocabulary(),
          "draft_to_target does not fit the draft vocabulary");
  require(static_cast<int64_t>(frequencies.size()) == shape.head_dim / 2, "frequencies do not fit the heads");
  const auto vocabulary = static_cast<int64_t>(embedding.shape(0));
  require_within(draft_to_target.data(), decoder.vocabulary(), vocabulary);
  new (self) DraftHead(decoder, embedding.data(), vocabulary,
                       {draft_to_target.data(), draft_to_target.data() + draft_to_target.size()},
                       {frequencies.data(), frequencies.data() + frequencies.size()}, rope_scale);
}

void read(DraftHead& head, DraftMemory& memory, int64_t length, const Floats& features, const Integers& following,
          int64_t position) {
  const auto rows = static_cast<int64_t>(following.size());
  require(rows > 0 && static_cast<int64_t>(features.size()) == rows * head.decoder().fusion_depth(),
          "features do not fit the tokens");
  require(length >= 0 && length + rows <= memory.slots, "the memory has no room for the tokens");
  require_within(following.data(), rows, head.vocabulary());
  nb::gil_scoped_release release;
  head.read(memory, length, features.data(), following.data(), rows, position);
}

void draft(DraftHead& head, DraftMemory& memory, int64_t length, TreeGrowth& growth, int64_t position) {
  require(!memory.stream.empty(), "nothing was read");
  require(growth.level() == 0, "the tree has grown already");
  const int64_t most = growth.bounds().depth * growth.bounds().width;
  require(length >= 0 && length + most <= memory.slots, "the memory has no room for the tree");
  nb::gil_scoped_release release;
  head.draft(memory, length, growth, position);
}

bool add_level(TreeGrowth& growth, const Tokens& ids, const Probabilities& probs) {
  require(ids.shape(0) == probs.shape(0) && ids.shape(1) == probs.shape(1), "ids and probs differ in shape");
  require(static_cast<int64_t>(ids.shape(0)) == growth.rows(), "there must be a row for each node expanded");
  return growth.add_level(ids.data(), probs.data(), growth.rows(), static_cast<int64_t>(ids.shape(1)));
}

}  // namespace

void bind_drafting(nb::module_& m) {
  nb::class_<TreeGrowth>(m, "TreeGrowth")
      .def(
          "__init__",
          [](TreeGrowth* self, int64_t depth, int64_t width, int64_t children, double min_path_prob,
             double level_gain) {
            require(depth > 0 && width > 0 && children > 0, "a tree has levels, nodes and children");
            new (self) TreeGrowth({depth, width, children, min_path_prob, level_gain});
          },
          nb::kw_only(), nb::arg("depth"), nb::arg("width"), nb::arg("children"), nb::arg("min_path_prob"),
          nb::arg("level_gain"))
      .def("add_level", &add_level, nb::arg("ids"), nb::arg("probs"))
      .def_prop_ro("children", [](const TreeGrowth& self) { return self.bounds().children; })
      .def_prop_ro("tokens", [](const TreeGrowth& self) { return to_numpy(self.tokens()); })
      .def_prop_ro("parents", [](const TreeGrowth& self) { return to_numpy(self.parents()); })
      .def_prop_ro("probs", [](const TreeGrowth& self) { return to_numpy(self.probs()); })
      .def_prop_ro("sources", [](const TreeGrowth& self) { return to_numpy(self.sources()); })
      .def_prop_ro("following", [](const TreeGrowth& self) { return to_numpy(self.following()); })
      .def_prop_ro("mask", [](const TreeGrowth& self) {
        const auto rows = static_cast<size_t>(self.rows());
        return to_numpy<bool>(self.mask(), {rows, static_cast<size_t>(self.drafted()) + rows});
      });

  nb::class_<DraftMemory>(m, "DraftMemory")
      .def(
          "__init__",
          [](DraftMemory* self, const DraftHead& head, int64_t slots) {
            require(slots > 0 && slots % kKeyBlock == 0, "slots must be a multiple of KEY_BLOCK");
            new (self) DraftMemory(head.decoder(), slots);
          },
          nb::arg("head"), nb::arg("slots"))
      .def(
          "shift",
          [](DraftMemory& self, int64_t dropped) {
            require(dropped >= 0 && dropped < self.slots && dropped % kKeyBlock == 0, "slots are forgotten in blocks");
            self.shift(dropped);
          },
          nb::arg("dropped"));

  nb::class_<DraftHead>(m, "DraftHead")
      .def("__init__", &new_head, nb::arg("decoder"), nb::arg("embedding").noconvert(), nb::arg("draft_to_target"),
           nb::arg("frequencies"), nb::arg("rope_scale"), nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>())
      .def("read", &read, nb::arg("memory"), nb::arg("length"), nb::arg("features"), nb::arg("following"),
           nb::arg("position"))
      .def("draft", &draft, nb::arg("memory"), nb::arg("length"), nb::arg("growth"), nb::arg("position"));
}

}  // namespace agentspec
