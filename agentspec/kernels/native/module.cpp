// Python bindings of the native kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "bandwidth.hpp"
#include "bindings.hpp"
#include "decoder.hpp"

namespace nb = nanobind;
using namespace agentspec;

namespace {

template <class Array>
void require_element(const Array& array, Element element, const char* name) {
  const auto bits = array.dtype().bits;
  require(bits == (element == Element::kFloat32 ? 32 : 16), std::string(name) + " has the wrong element type");
}

std::vector<float> copy(const Floats& array, int64_t size, const char* name) {
  require(static_cast<int64_t>(array.size()) == size, std::string(name) + " has the wrong length");
  return {array.data(), array.data() + array.size()};
}

PackedMatrix pack(Decoder& decoder, const Stored& weights, const std::optional<Floats>& bias, int64_t columns,
                  int64_t depth, const Packing& packing, const char* name) {
  require(weights.ndim() == 2 && static_cast<int64_t>(weights.shape(0)) == columns &&
              static_cast<int64_t>(weights.shape(1)) == depth,
          std::string(name) + " has the wrong shape");
  require_element(weights, decoder.element(), name);
  require(!packing.bytes || depth <= kMostByteDepth, std::string(name) + " is too wide for 8-bit weights");
  require(!bias || static_cast<int64_t>(bias->size()) == columns, std::string(name) + "'s bias has the wrong length");
  return PackedMatrix(weights.data(), bias ? bias->data() : nullptr, columns, depth, decoder.element(), packing,
                      decoder.weight_memory());
}

void add_layer(Decoder& decoder, const Floats& attention_norm, const Stored& qkv, const std::optional<Floats>& qkv_bias,
               const std::optional<Floats>& query_norm, const std::optional<Floats>& key_norm, const Stored& output,
               const std::optional<Floats>& output_bias, const Floats& feed_norm, const Stored& gate_up,
               const std::optional<Floats>& gate_up_bias, const Stored& down, const std::optional<Floats>& down_bias,
               const std::optional<Floats>& embedding_norm) {
  const DecoderShape& shape = decoder.shape();
  const int64_t queries = shape.heads * shape.head_dim, kv = shape.kv_heads * shape.head_dim;
  DecoderLayer layer;
  layer.attention_norm = copy(attention_norm, shape.hidden, "attention_norm");
  layer.feed_norm = copy(feed_norm, shape.hidden, "feed_norm");
  if (query_norm) layer.query_norm = copy(*query_norm, shape.head_dim, "query_norm");
  if (key_norm) layer.key_norm = copy(*key_norm, shape.head_dim, "key_norm");
  if (embedding_norm) layer.embedding_norm = copy(*embedding_norm, shape.hidden, "embedding_norm");
  const int64_t read = embedding_norm ? 2 * shape.hidden : shape.hidden;
  const Packing plain{.gated = false, .bytes = decoder.bytes()}, gated{.gated = true, .bytes = decoder.bytes()};
  layer.qkv = pack(decoder, qkv, qkv_bias, queries + 2 * kv, read, plain, "qkv");
  layer.output = pack(decoder, output, output_bias, shape.hidden, queries, plain, "output");
  layer.gate_up = pack(decoder, gate_up, gate_up_bias, 2 * shape.intermediate, shape.hidden, gated, "gate_up");
  layer.down = pack(decoder, down, down_bias, shape.hidden, shape.intermediate, plain, "down");
  decoder.add_layer(std::move(layer));
}

void forward(Decoder& decoder, const MutableFloats& stream, const Floats& cosine, const Floats& sine,
             const std::vector<MutableStored>& keys, const std::vector<MutableStored>& values,
             const std::vector<int64_t>& lengths, const std::vector<int64_t>& counts,
             const std::vector<std::optional<Mask>>& masks, const Integers& rows, const std::vector<int64_t>& capture,
             const MutableFloats& logits, const MutableFloats& hidden) {
  const DecoderShape& shape = decoder.shape();
  const size_t sequences = keys.size();
  require(values.size() == sequences && lengths.size() == sequences && counts.size() == sequences &&
              masks.size() == sequences,
          "keys, values, lengths, counts and masks must be of equal length");
  require(!decoder.reads_embeddings(), "a draft head's layer runs in a DraftHead");
  Batch batch{.stream = stream.data(),
              .embeddings = nullptr,
              .cosine = cosine.data(),
              .sine = sine.data(),
              .tails = {},
              .rows = rows.data(),
              .row_count = static_cast<int64_t>(rows.size()),
              .capture = capture,
              .logits = logits.data(),
              .hidden = hidden.data()};
  int64_t tokens = 0;
  for (size_t index = 0; index < sequences; ++index) {
    const auto& k = keys[index];
    const auto& v = values[index];
    require_element(k, decoder.element(), "keys");
    require_element(v, decoder.element(), "values");
    require(v.ndim() == 4 && k.size() == v.size() && static_cast<int64_t>(v.shape(3)) == shape.head_dim &&
                static_cast<int64_t>(v.shape(1)) == shape.kv_heads && v.shape(2) % kKeyBlock == 0,
            "a cache has the wrong shape");
    const auto capacity = static_cast<int64_t>(v.shape(2));
    require(lengths[index] >= 0 && counts[index] > 0 && lengths[index] + counts[index] <= capacity,
            "a cache has no room for its new tokens");
    const auto& mask = masks[index];
    require(!mask || (static_cast<int64_t>(mask->shape(0)) == counts[index] &&
                      static_cast<int64_t>(mask->shape(1)) == counts[index]),
            "a mask does not fit its tokens");
    for (int64_t token = 0; mask && token < counts[index]; ++token) {
      require(mask->data()[token * counts[index] + token], "a mask hides a token from itself");
    }
    batch.tails.push_back({static_cast<std::byte*>(k.data()), static_cast<std::byte*>(v.data()), capacity,
                           lengths[index], 0, counts[index],
                           mask ? reinterpret_cast<const uint8_t*>(mask->data()) : nullptr});
    tokens += counts[index];
  }
  require(static_cast<int64_t>(stream.size()) == tokens * shape.hidden &&
              static_cast<int64_t>(cosine.size()) == tokens * shape.head_dim / 2 && sine.size() == cosine.size(),
          "stream, cosine or sine do not fit the tokens");
  for (size_t row = 0; row < rows.size(); ++row) {
    require(rows.data()[row] >= 0 && rows.data()[row] < tokens, "a row lies outside the batch");
  }
  require(static_cast<int64_t>(logits.size()) == batch.row_count * decoder.vocabulary() &&
              static_cast<int64_t>(hidden.size()) == tokens * static_cast<int64_t>(capture.size()) * shape.hidden,
          "logits do not fit the rows, or hidden the tokens");
  nb::gil_scoped_release release;
  decoder.forward(batch);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Native CPU kernels: a batch-invariant decoder, and the memory bandwidth it is measured against.";
  m.attr("KEY_BLOCK") = kKeyBlock;
  m.attr("ROW_MULTIPLE") = kRowMultiple;
  m.attr("MAX_HEAD_DIM") = kMaxHeadDim;

  nb::class_<Decoder>(m, "Decoder")
      .def(
          "__init__",
          [](Decoder* self, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t intermediate,
             float norm_epsilon, bool bfloat16, int threads, const std::string& instruction_set, bool bytes) {
            const bool fits = hidden % kRowMultiple == 0 && head_dim % kRowMultiple == 0 &&
                              intermediate % kRowMultiple == 0 && head_dim <= kMaxHeadDim && heads % kv_heads == 0;
            require(fits, "sizes are not multiples of 16, or a head is too wide");
            new (self) Decoder({hidden, heads, kv_heads, head_dim, intermediate, norm_epsilon},
                               bfloat16 ? Element::kBfloat16 : Element::kFloat32, bytes, threads,
                               instruction_set.c_str());
          },
          nb::kw_only(), nb::arg("hidden"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"),
          nb::arg("intermediate"), nb::arg("norm_epsilon"), nb::arg("bfloat16"), nb::arg("threads"),
          nb::arg("instruction_set") = "", nb::arg("bytes") = false)
      .def("add_layer", &add_layer, nb::kw_only(), nb::arg("attention_norm"), nb::arg("qkv"),
           nb::arg("qkv_bias").none(), nb::arg("query_norm").none(), nb::arg("key_norm").none(), nb::arg("output"),
           nb::arg("output_bias").none(), nb::arg("feed_norm"), nb::arg("gate_up"), nb::arg("gate_up_bias").none(),
           nb::arg("down"), nb::arg("down_bias").none(), nb::arg("embedding_norm") = nb::none())
      .def(
          "set_head",
          [](Decoder& self, const Floats& norm, const Stored& head) {
            const auto columns = static_cast<int64_t>(head.shape(0));
            self.set_head(copy(norm, self.shape().hidden, "norm"),
                          pack(self, head, std::nullopt, columns, self.shape().hidden,
                               {.gated = false, .bytes = self.bytes()}, "head"));
          },
          nb::arg("norm"), nb::arg("head"))
      .def("set_threads", &Decoder::set_threads, nb::arg("threads"))
      .def_prop_ro("instruction_set", &Decoder::instruction_set)
      .def_prop_ro("bytes", &Decoder::bytes)
      .def("forward", &forward, nb::kw_only(), nb::arg("stream"), nb::arg("cosine"), nb::arg("sine"), nb::arg("keys"),
           nb::arg("values"), nb::arg("lengths"), nb::arg("counts"), nb::arg("masks"), nb::arg("rows"),
           nb::arg("capture"), nb::arg("logits"), nb::arg("hidden"))
      .def(
          "set_fusion",
          [](Decoder& self, const Stored& fusion) {
            require(fusion.ndim() == 2 && fusion.shape(1) % kRowMultiple == 0, "fusion has the wrong shape");
            const auto depth = static_cast<int64_t>(fusion.shape(1));
            self.set_fusion(pack(self, fusion, std::nullopt, self.shape().hidden, depth,
                                 {.gated = false, .bytes = false}, "fusion"));
          },
          nb::arg("fusion"));

  bind_drafting(m);

  m.def("read_bandwidth", &read_bandwidth, nb::arg("bytes"), nb::arg("threads"), nb::arg("passes"),
        nb::call_guard<nb::gil_scoped_release>(),
        "Best bytes per second of `passes` reads of a buffer of `bytes`, on `threads` threads.");
}
