// Python bindings of the native index core.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include "checksum.hpp"
#include "segment.hpp"
#include "sort.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using agentspec::Mapping;
using agentspec::Segment;

namespace {

using Int32Input = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ByteInput = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
using ReadOnlyView = nb::ndarray<nb::numpy, const T, nb::ndim<1>>;

// A view of mapped memory that keeps the segment alive.
template <typename T>
ReadOnlyView<T> view(nb::handle owner, const void* data, std::int64_t count) {
  return ReadOnlyView<T>(static_cast<const T*>(data), {static_cast<std::size_t>(count)}, owner);
}

template <auto Data, auto Count, typename T>
ReadOnlyView<T> whole(nb::handle self) {
  const Segment& segment = nb::cast<const Segment&>(self);
  return view<T>(self, (segment.*Data)(), (segment.*Count)());
}

nb::ndarray<nb::numpy, std::uint32_t, nb::ndim<1>> sort_contexts(Int32Input tokens) {
  std::vector<std::uint32_t>* order = nullptr;
  {
    const nb::gil_scoped_release unlocked;
    order = new std::vector<std::uint32_t>(agentspec::sort_contexts({tokens.data(), tokens.shape(0)}));
  }
  const nb::capsule owner(order, [](void* data) noexcept { delete static_cast<std::vector<std::uint32_t>*>(data); });
  return {order->data(), {order->size()}, owner};
}

std::uint64_t checksum(ByteInput data, std::uint64_t seed) {
  return agentspec::checksum(data.data(), data.shape(0), seed);
}

nb::object definition(const Segment& segment, std::int64_t number) {
  if (number < 0 || number >= segment.definition_count()) {
    throw nb::index_error("no definition of that number in this segment");
  }
  const agentspec::DefinitionEntry entry = segment.definitions()[number];
  const std::string_view name = segment.name_of(entry);
  return nb::make_tuple(nb::bytes(name.data(), name.size()), entry.start, entry.length_and_kind >> 8,
                        entry.length_and_kind & 0xff);
}

// The numbers [first, last) of the definitions called `name`.
std::pair<std::int64_t, std::int64_t> definitions_named(const Segment& segment, std::string_view name) {
  const auto* begin = segment.definitions();
  const auto* end = begin + segment.definition_count();
  const auto* first = std::lower_bound(begin, end, name, [&](const auto& entry, std::string_view value) {
    return segment.name_of(entry) < value;
  });
  const auto* last = std::upper_bound(first, end, name, [&](std::string_view value, const auto& entry) {
    return value < segment.name_of(entry);
  });
  return {first - begin, last - begin};
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Native core of agentspec's index.";

  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
        try {
          std::rethrow_exception(pointer);
        } catch (const agentspec::SegmentError& error) {
          const nb::object type = nb::module_::import_("agentspec.errors").attr("IndexStoreError");
          PyErr_SetString(type.ptr(), error.what());
        }
      },
      nullptr);

  m.attr("CONTEXT_DEPTH") = agentspec::kContextDepth;
  m.attr("MAX_TOKEN") = agentspec::kMaxToken;
  m.attr("SECTION_ALIGNMENT") = agentspec::kSectionAlignment;
  m.attr("SEGMENT_VERSION") = agentspec::kSegmentVersion;
  m.def("sort_contexts", &sort_contexts, "tokens"_a);
  m.def("checksum", &checksum, "data"_a, "seed"_a);

  nb::class_<Mapping>(m, "Mapping")
      .def(nb::init<const std::string&>(), "path"_a)
      .def_prop_ro("damaged", &Mapping::damaged)
      .def_prop_ro("data", [](nb::handle self) {
        const Mapping& mapping = nb::cast<const Mapping&>(self);
        return view<std::uint8_t>(self, mapping.data(), static_cast<std::int64_t>(mapping.size()));
      });

  nb::class_<Segment>(m, "Segment")
      .def_static("open", &Segment::open, "path"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("path", &Segment::path)
      .def_prop_ro("file_size", &Segment::file_size)
      .def_prop_ro("vocabulary_size", &Segment::vocabulary_size)
      .def_prop_ro("size", &Segment::size)
      .def_prop_ro("order_size", &Segment::order_size)
      .def_prop_ro("document_count", &Segment::document_count)
      .def_prop_ro("definition_count", &Segment::definition_count)
      .def_prop_ro("damaged", &Segment::damaged)
      .def_prop_ro("tokens", &whole<&Segment::tokens, &Segment::size, std::int32_t>)
      .def_prop_ro("order", &whole<&Segment::order, &Segment::order_size, std::uint32_t>)
      .def_prop_ro("identifiers",
                   [](nb::handle self) {
                     const Segment& segment = nb::cast<const Segment&>(self);
                     return view<std::uint8_t>(self, segment.identifiers(), (segment.size() + 7) / 8);
                   })
      .def_prop_ro("document_table",
                   [](nb::handle self) {
                     const Segment& segment = nb::cast<const Segment&>(self);
                     return view<std::uint8_t>(self, segment.documents(),
                                               segment.document_count() *
                                                   static_cast<std::int64_t>(sizeof(agentspec::DocumentEntry)));
                   })
      .def_prop_ro("definition_table",
                   [](nb::handle self) {
                     const Segment& segment = nb::cast<const Segment&>(self);
                     return view<std::uint8_t>(self, segment.definitions(),
                                               segment.definition_count() *
                                                   static_cast<std::int64_t>(sizeof(agentspec::DefinitionEntry)));
                   })
      .def("document_at", &Segment::document_at, "position"_a)
      .def("is_identifier", &Segment::is_identifier, "position"_a)
      .def("definition", &definition, "number"_a)
      .def("definitions_named", &definitions_named, "name"_a);
}
