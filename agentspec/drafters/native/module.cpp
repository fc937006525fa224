// Python bindings of the native drafting core.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "session.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace agentspec;

namespace {

template <typename T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Output = nb::ndarray<nb::numpy, T, nb::ndim<1>>;

template <typename T>
std::span<const T> span_of(const Input<T>& array) {
  return {array.data(), array.shape(0)};
}

template <typename T>
Output<T> copy_out(std::span<const T> values) {
  T* data = new T[std::max<std::size_t>(values.size(), 1)];
  std::copy(values.begin(), values.end(), data);
  return {data, {values.size()}, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); })};
}

// The four arrays of a tree, in one piece of memory that they own together.
nb::tuple arrays_of(const FlatTree& tree) {
  static_assert(sizeof(Token) == 4 && sizeof(float) == 4);
  const std::size_t size = tree.tokens.size();
  auto* memory = new std::byte[13 * size + 1];
  const nb::capsule owner(memory, [](void* p) noexcept { delete[] static_cast<std::byte*>(p); });
  const auto place = [&]<typename T>(const std::vector<T>& values, std::size_t offset) {
    T* data = reinterpret_cast<T*>(memory + offset);
    std::copy(values.begin(), values.end(), data);
    return Output<T>(data, {size}, owner);
  };
  return nb::make_tuple(place(tree.tokens, 0), place(tree.parents, 4 * size), place(tree.prob, 8 * size),
                        place(tree.source, 12 * size));
}

void check_tokens(std::span<const Token> tokens, const char* what) {
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [](Token token) { return token < 0; });
  if (bad != tokens.end()) {
    throw std::invalid_argument(std::string(what) + " holds the negative token " + std::to_string(*bad) +
                                " at position " + std::to_string(bad - tokens.begin()));
  }
}

// Copies `source[name]`, float32 of exactly the size of `target`.
template <typename Array>
void load(nb::dict source, const char* name, Array& target) {
  const auto array = nb::cast<nb::ndarray<const float, nb::c_contig, nb::device::cpu>>(source[name]);
  if (array.size() * sizeof(float) != sizeof(target)) {
    throw std::invalid_argument(std::string("weights: ") + name + " has " + std::to_string(array.size()) +
                                " values; expected " + std::to_string(sizeof(target) / sizeof(float)));
  }
  for (std::size_t i = 0; i < array.size(); ++i) {
    if (!std::isfinite(array.data()[i])) throw std::invalid_argument(std::string("weights: ") + name + " is not finite");
  }
  std::copy(array.data(), array.data() + array.size(), reinterpret_cast<float*>(&target));
}

std::shared_ptr<Ranker> make_ranker(nb::dict source, bool wide) {
  RankerWeights weights;
  load(source, "origin_match", weights.origin_match);
  load(source, "relation_match", weights.relation_match);
  load(source, "recency", weights.recency);
  load(source, "none", weights.none);
  load(source, "hidden", weights.hidden);
  load(source, "hidden_bias", weights.hidden_bias);
  load(source, "output", weights.output);
  load(source, "output_bias", weights.output_bias);
  return std::make_shared<Ranker>(weights, wide);
}

struct FusionWeights {
  Fusion::Weights values{};
};

std::shared_ptr<FusionWeights> make_fusion(nb::dict source) {
  auto weights = std::make_shared<FusionWeights>();
  load(source, "both", weights->values[static_cast<std::size_t>(Known::kByBoth)]);
  load(source, "texts", weights->values[static_cast<std::size_t>(Known::kByTexts)]);
  load(source, "other", weights->values[static_cast<std::size_t>(Known::kByOther)]);
  return weights;
}

void make_session(Session* self, std::shared_ptr<Ranker> ranker, std::shared_ptr<FusionWeights> fusion,
                  Input<Token> prompt) {
  const nb::gil_scoped_release unlocked;
  check_tokens(span_of(prompt), "prompt");
  new (self) Session(std::move(ranker), fusion->values, span_of(prompt));
}

std::shared_ptr<IndexedText> make_text(Input<Token> tokens) {
  const nb::gil_scoped_release unlocked;
  auto text = std::make_shared<IndexedText>(static_cast<std::int64_t>(tokens.shape(0)));
  text->append(span_of(tokens));
  return text;
}

// Positions and match lengths of candidates, in the order in which they were found.
nb::tuple places(const std::vector<Candidate>& found) {
  std::vector<std::int64_t> positions;
  std::vector<std::int32_t> matches;
  for (const Candidate& candidate : found) {
    positions.push_back(candidate.position);
    matches.push_back(candidate.match);
  }
  return nb::make_tuple(copy_out<std::int64_t>(positions), copy_out<std::int32_t>(matches));
}

nb::tuple find_in_text(const IndexedText& self, Input<Token> context, int limit, int enough) {
  std::vector<Candidate> found;
  self.find(span_of(context), ContextHashes(span_of(context)), limit, enough, 0, found);
  return places(found);
}

nb::tuple find_in_segment(std::shared_ptr<Segment> segment, Input<std::uint64_t> live, Input<Token> context, int limit,
                          int shortest) {
  const RepositoryText text(std::move(segment), {live.data(), live.data() + live.shape(0)});
  std::vector<Candidate> found;
  text.find(span_of(context), limit, shortest, 0, found);
  return places(found);
}

std::uint32_t add_text(Session& self, std::shared_ptr<IndexedText> text, std::uint8_t origin) {
  if (origin >= kOrigins) throw std::invalid_argument("no such origin");
  return self.sources().add_text(std::move(text), static_cast<Origin>(origin));
}

std::uint32_t add_segment(Session& self, std::shared_ptr<Segment> segment, Input<std::uint64_t> live) {
  std::vector<std::uint64_t> words(live.data(), live.data() + live.shape(0));
  return self.sources().add_segment(std::move(segment), std::move(words));
}

void add_pair(Session& self, Input<Token> open, Input<Token> echo, Input<Token> boundary, Input<Token> close,
              std::uint32_t close_text, std::int64_t close_position) {
  const auto copy = [](const Input<Token>& tokens) {
    return std::vector<Token>(tokens.data(), tokens.data() + tokens.shape(0));
  };
  if (open.shape(0) == 0 || echo.shape(0) == 0) throw std::invalid_argument("a marker has no tokens");
  self.sources().echoes().add_pair({copy(open), copy(echo), copy(boundary), copy(close)}, {close_text, close_position});
}

struct TokenClasses {
  std::vector<TokenClass> values;
};

std::shared_ptr<TokenClasses> make_classes(Input<std::uint8_t> classes) {
  auto result = std::make_shared<TokenClasses>();
  for (const std::uint8_t value : span_of(classes)) {
    if (value >= kTokenClasses) throw std::invalid_argument("no such token class");
    result->values.push_back(static_cast<TokenClass>(value));
  }
  return result;
}

nb::tuple propose(Session& self, int max_nodes, int max_depth, float min_path_prob,
                  std::optional<Input<float>> cost, std::optional<Input<Token>> tokens,
                  std::optional<Input<std::int32_t>> parents, std::optional<Input<float>> prob,
                  std::optional<Input<std::uint8_t>> source) {
  BudgetBounds bounds{max_nodes, max_depth, min_path_prob, {}};
  if (cost) bounds.cost = span_of(*cost);
  ExtraTree extra;
  if (tokens && parents && prob && source) {
    extra = {span_of(*tokens), span_of(*parents), span_of(*prob), span_of(*source)};
  }
  return arrays_of(self.propose(bounds, extra));
}

bool commit(Session& self, Input<Token> tokens) {
  check_tokens(span_of(tokens), "verdict");
  return self.commit(span_of(tokens));
}

nb::tuple counts(const Session& self) {
  const Counts& counts = self.counts();
  return nb::make_tuple(counts.steps, copy_out<std::int64_t>(counts.drafted), copy_out<std::int64_t>(counts.accepted));
}

nb::dict observe(Session& self, Input<Token> next, int max_depth) {
  Observations seen;
  self.observe(span_of(next), max_depth, seen);
  nb::dict result;
  result["candidate_node"] = copy_out<std::int32_t>(seen.node_of_candidate);
  result["candidates"] = copy_out<std::uint8_t>(seen.candidates);
  result["longest"] = copy_out<std::uint8_t>(seen.longest);
  result["features"] = copy_out<float>(std::span<const float>(reinterpret_cast<const float*>(seen.tokens.data()),
                                                              seen.tokens.size() * kFeatures));
  result["hits"] = copy_out<std::uint8_t>(seen.token_hits);
  result["depths"] = copy_out<std::uint8_t>(seen.depths);
  return result;
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Native core of agentspec's drafters.";
  nb::set_leak_warnings(false);  // the shipped weights are cached until the interpreter ends
  nb::module_::import_("agentspec.index._native");  // registers Segment

  m.attr("ORIGINS") = kOrigins;
  m.attr("RELATIONS") = kRelations;
  m.attr("RECENCIES") = kRecencies;
  m.attr("MATCH_BUCKETS") = kMatchBuckets;
  m.attr("FEATURES") = kFeatures;
  m.attr("NODE_FEATURES") = kNodeFeatures;
  m.attr("HIDDEN") = kHidden;
  m.attr("FUSION_TERMS") = Fusion::kTerms;
  m.attr("FUSION_LEAST") = Fusion::kLeast;
  m.attr("FUSION_LEAST_LEFT") = Fusion::kLeastLeft;

  nb::class_<Ranker>(m, "Ranker", "Learnt weights; immutable and shared between sessions.")
      .def(nb::new_(&make_ranker), "weights"_a, "wide"_a = true,
           "From a dict of float32 arrays, named as in native/ranker.hpp; `wide`: with wider registers, where the "
           "processor has them.");

  nb::class_<IndexedText>(m, "IndexedText", "Tokens in memory, indexed by their contexts; shared between sessions.")
      .def(nb::new_(&make_text), "tokens"_a, "`int32[M]`; negative tokens separate pieces and are never drafted.")
      .def("__len__", [](const IndexedText& self) { return self.size(); })
      .def("find", &find_in_text, "context"_a, "limit"_a, "enough"_a,
           "(positions, match lengths) of the places whose left context ends like `context`; see IndexedText::find.");
  m.def("find_in_segment", &find_in_segment, "segment"_a, "live"_a, "context"_a, "limit"_a, "shortest"_a,
        "(positions, match lengths) of the nearest places of a segment; see RepositoryText::find.");

  nb::class_<TokenClasses>(m, "TokenClasses", "What each token of a vocabulary looks like; shared between sessions.")
      .def(nb::new_(&make_classes), "classes"_a);

  nb::class_<FusionWeights>(m, "FusionWeights", "How two drafters' words on a token are weighed; immutable and shared.")
      .def(nb::new_(&make_fusion), "weights"_a, "From a dict of float32 arrays, see native/fusion.hpp.");

  nb::class_<Session>(m, "Session", "Drafting state of one request; not thread-safe.")
      .def("__init__", &make_session, "ranker"_a, "fusion"_a, "prompt"_a)
      .def("add_text", &add_text, "text"_a, "origin"_a, "Add a text to copy from; returns its number.")
      .def("add_pair", &add_pair, "open"_a, "echo"_a, "boundary"_a, "close"_a, "close_text"_a, "close_position"_a,
           "Markers of a format that repeats what it replaces; see native/echoes.hpp.")
      .def("latest_pair", [](Session& self) { return self.sources().echoes().latest_pair(); },
           "Number of the format whose searched text began last; -1: none so far.")
      .def("set_token_classes", [](Session& self, std::shared_ptr<TokenClasses> classes) {
             self.sources().set_token_classes(std::shared_ptr<const std::vector<TokenClass>>(classes, &classes->values));
           }, "classes"_a)
      .def("add_marker", [](Session& self, Input<Token> marker, std::uint32_t text, std::int64_t position) {
             if (marker.shape(0) == 0) throw std::invalid_argument("a marker has no tokens");
             self.sources().echoes().add_marker(span_of(marker), {text, position});
           }, "marker"_a, "text"_a, "position"_a, "After `marker`, the text at `position` is likely.")
      .def("add_segment", &add_segment, "segment"_a, "live"_a,
           "Add an index segment; `live`: uint64 words, a bit per document; returns its text number.")
      .def("set_edited", [](Session& self, std::uint32_t text, std::int64_t start, std::int64_t end) {
             self.sources().set_edited(text, start, end);
           }, "text"_a, "start"_a, "end"_a, "Tokens [start, end) of a text are the file being edited.")
      .def("start_draft", [](Session& self, std::uint32_t text, std::int64_t position) {
             self.sources().start_draft(text, position);
           }, "text"_a, "position"_a, "The text at `position` is likely to come next.")
      .def("propose", &propose, "max_nodes"_a, "max_depth"_a, "min_path_prob"_a, "cost"_a.none(),
           "tokens"_a.none() = nb::none(), "parents"_a.none() = nb::none(), "prob"_a.none() = nb::none(),
           "source"_a.none() = nb::none(),
           "The next tree as (tokens, parents, prob, source); the last four arguments are an outside drafter's tree.")
      .def("commit", &commit, "tokens"_a,
           "Append the target's verdict, `int32[A + 1]`; whether one of the awaited tokens is in it.")
      .def("await_tokens", [](Session& self, Input<Token> tokens) {
             self.await({tokens.data(), tokens.data() + tokens.shape(0)});
           }, "tokens"_a, "`commit` says when one of these tokens comes.")
      .def("counts", &counts, "(steps, drafted by source, accepted by source).")
      .def("observe", &observe, "next"_a, "max_depth"_a, "What the ranker sees along a known continuation, for fitting.");
}
