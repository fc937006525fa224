// Matrix products of a panel: tiles, and what becomes of their sums.
namespace agentspec {
namespace {

// Words of 32 bits of a row of activations: a float, two bfloat16 or four bytes.
template <class Weight>
inline int64_t row_words(int64_t depth) {
  return depth * static_cast<int64_t>(sizeof(typename Activation<Weight>::Type)) / 4;
}

// Row tiles are of nearly equal height: 32 rows are 16 + 16, not 24 + 8.
struct RowTiles {
  int64_t rows;
  int64_t count;
  explicit RowTiles(int64_t all) : rows(all), count((all + kTileRows - 1) / kTileRows) {}
  int64_t first(int64_t index) const { return rows * index / count; }
};

// What becomes of a row of sums.
struct Replace {
  float* out;
  int64_t stride;
  int64_t columns;
  void operator()(int64_t row, const float* sums) const {
    float* to = out + row * stride;
    if (columns == kPanelColumns) {
      for (int c = 0; c < kPanelVectors; ++c) save(to + c * kLanes, load(sums + c * kLanes));
      return;
    }
    for (int64_t column = 0; column < columns; ++column) to[column] = sums[column];
  }
};

struct Add {
  float* out;
  int64_t stride;
  int64_t columns;
  void operator()(int64_t row, const float* sums) const {
    float* to = out + row * stride;
    if (columns == kPanelColumns) {
      for (int c = 0; c < kPanelVectors; ++c) save(to + c * kLanes, load(to + c * kLanes) + load(sums + c * kLanes));
      return;
    }
    for (int64_t column = 0; column < columns; ++column) to[column] += sums[column];
  }
};

template <class Out>
struct Gate {
  Out* out;
  int64_t stride;
  void operator()(int64_t row, const float* sums) const {
    Out* to = out + row * stride;
    for (int c = 0; c < kStripVectors; ++c) {
      const Vector gate = load(sums + c * kLanes);
      save(to + c * kLanes, gate / (1.0f + exponential(-gate)) * load(sums + kStripColumns + c * kLanes));
    }
  }
};

// A tile's row of sums in floats, in place.
inline float* in_floats(const PanelProduct&, int64_t, float* sums) { return sums; }

inline float* in_floats(const PanelProduct& product, int64_t row, int32_t* sums) {
  auto* floats = reinterpret_cast<float*>(sums);
  const int32_t offset = kByteOffset * product.row_sums[row];
  for (int c = 0; c < kPanelColumns; c += kLanes) {
    const Signed whole = *reinterpret_cast<const Signed*>(sums + c) - offset;
    save(floats + c, __builtin_convertvector(whole, Vector) * product.row_scales[row] * load(product.column_scales + c));
  }
  return floats;
}

template <class Weight, class Finish>
void multiply(const PanelProduct& product, const Finish& finish) {
  static constexpr ByRows<Tiles<Weight>, kTileRows> kTiles;
  const auto* panel = static_cast<const Weight*>(product.panel);
  const RowTiles tiles(product.rows);
  typename Sum<Weight>::Type sums[kTileRows * kPanelColumns];
  for (int64_t index = 0; index < tiles.count; ++index) {
    const int64_t first = tiles.first(index), height = tiles.first(index + 1) - first;
    const auto* activations =
        static_cast<const typename Activation<Weight>::Type*>(product.activations) + first * product.depth;
    const auto function = kTiles.of[height - 1];
    function(activations, panel, product.depth, sums);
    if (height > kWideTileRows) {
      function(activations, panel + product.depth * kStripColumns, product.depth, sums + kStripColumns);
    }
    for (int64_t row = 0; row < height; ++row) {
      float* row_sums = in_floats(product, first + row, sums + row * kPanelColumns);
      for (int64_t c = 0; c < kPanelColumns && product.bias != nullptr; c += kLanes) {
        save(row_sums + c, load(row_sums + c) + load(product.bias + c));
      }
      finish(first + row, row_sums);
    }
  }
}

// The rows of each tile together, depth by depth.
template <class Weight>
void transpose_tiles(const void* activations, int64_t rows, int64_t depth, void* out) {
  const RowTiles tiles(rows);
  const int64_t words = row_words<Weight>(depth);
  for (int64_t index = 0; index < tiles.count; ++index) {
    const int64_t first = tiles.first(index);
    transpose(static_cast<const char*>(activations) + first * words * 4, tiles.first(index + 1) - first, words,
              static_cast<char*>(out) + first * words * 4);
  }
}

template <class Weight>
void pack(const void* activations, int64_t rows, int64_t depth, const PackedRows& out) {
  transpose_tiles<Weight>(activations, rows, depth, out.values);
}

template <class Weight>
void product(const PanelProduct& operands, float* out, int64_t stride, int64_t columns) {
  multiply<Weight>(operands, Replace{out, stride, columns});
}

template <class Weight>
void product_add(const PanelProduct& operands, float* out, int64_t stride, int64_t columns) {
  multiply<Weight>(operands, Add{out, stride, columns});
}

template <class Weight, class Out>
void product_gated(const PanelProduct& operands, void* out, int64_t stride) {
  multiply<Weight>(operands, Gate<Out>{static_cast<Out*>(out), stride});
}

template <class Weight>
constexpr Products products() {
  return {pack<Weight>, product<Weight>, product_add<Weight>,
          product_gated<Weight, typename Activation<Weight>::Type>};
}

}  // namespace
}  // namespace agentspec
