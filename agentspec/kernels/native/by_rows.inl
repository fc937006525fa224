// Functions compiled once for each number of rows: their sums are named registers only where the number is a constant.
namespace agentspec {
namespace {

// `of[rows - 1]` is `Source::function<rows>()`.
template <class Source, int kMost>
struct ByRows {
  typename Source::Function of[kMost] = {};
  constexpr ByRows() { fill<kMost>(); }

 private:
  template <int kRows>
  constexpr void fill() {
    if constexpr (kRows > 1) fill<kRows - 1>();
    of[kRows - 1] = Source::template function<kRows>();
  }
};

}  // namespace
}  // namespace agentspec
