// Arithmetic of a Llama-like decoder on the CPU, once for each instruction set and element type.
//
// Every kernel is *batch-invariant*: what it computes for one row is the same sequence of operations however many
// rows are computed with it. A draft tree's logits are therefore bit for bit those of plain decoding.
#pragma once

#include <cstdint>

namespace agentspec {

// Columns of a weight panel, the unit of work of a matrix product.
constexpr int kPanelColumns = 32;
// Columns of a panel that are stored together: a panel is a row of strips.
constexpr int kStripColumns = 16;
// Slots whose keys are stored together, slot fastest.
constexpr int kKeyBlock = 16;
// What the bytes of 8-bit weights lie above the weights.
constexpr int kByteOffset = 128;
// Most depth of a product of bytes: its sums stay below 2^31.
constexpr int64_t kMostByteDepth = 65536;
// Row lengths are multiples of this.
constexpr int kRowMultiple = 16;

// Most queries that one call of `attend` takes, in any table.
constexpr int kMaxAttendRows = 12;
// Widest head.
constexpr int kMaxHeadDim = 256;

// Element types of weights, keys and values.
enum class Element { kFloat32, kBfloat16 };

// One key/value head of one sequence in one layer.
struct HeadCache {
  void* keys;    // [capacity / kKeyBlock, head_dim, kKeyBlock]
  void* values;  // [capacity, head_dim]
};

// Which keys a query sees: all slots below `contiguous`, then those listed.
struct Visible {
  int64_t contiguous;
  const int32_t* extra;  // slots, ascending, all >= contiguous
  int64_t extra_count;
};

// A matrix product's operands: rows of activations against one weight panel.
struct PanelProduct {
  const void* activations;  // as `pack` leaves them
  int64_t rows;
  int64_t depth;
  const void* panel;  // see PackedMatrix; what lies behind it is fetched meanwhile
  const float* bias;  // [kPanelColumns], or null
  // Of 8-bit products:
  const float* column_scales;  // [kPanelColumns], of the weights
  const float* row_scales;     // [rows], of the activations
  const int32_t* row_sums;     // [rows], of each row's bytes
};

// Where `pack` leaves activations.
struct PackedRows {
  void* values;        // [rows, depth] in the order in which products read them
  float* row_scales;   // see PanelProduct
  int32_t* row_sums;
};

// Products with weights of one kind.
struct Products {
  // Brings activations [rows, depth] into the order in which products read them; `out.values` has room for as many
  // bytes as they take.
  void (*pack)(const void* activations, int64_t rows, int64_t depth, const PackedRows& out);
  // out[r, 0 .. columns) = product. `out` has `stride` floats a row.
  void (*product)(const PanelProduct&, float* out, int64_t stride, int64_t columns);
  // out[r, c] += product.
  void (*product_add)(const PanelProduct&, float* out, int64_t stride, int64_t columns);
  // The panel's first half holds gate columns, the second the up columns of the same places:
  // activations out[r, c] = silu(gate) * up, kPanelColumns / 2 of them. `stride` in elements.
  void (*product_gated)(const PanelProduct&, void* out, int64_t stride);
};

// A function table. "Activations" are rows of numbers of `activation_bytes` each.
struct Kernels {
  const char* name;
  Element element;
  int activation_bytes;

  Products products;         // with weights of `element`
  const Products* integers;  // with 8-bit weights; null where the processor has no instruction for them

  // Activations out = row.
  void (*activate)(const float* row, int64_t length, void* out);
  // Activations out = row * weight / rms(row).
  void (*rms_norm)(const float* row, const float* weight, float epsilon, int64_t length, void* out);
  // The same in place, on floats.
  void (*rms_norm_inplace)(float* row, const float* weight, float epsilon, int64_t length);
  // Rotates one head, halves paired as in Llama, and scales it.
  void (*rotate)(float* head, const float* cosine, const float* sine, int64_t head_dim, float scale);
  // Stores one key and one value at `slot`.
  void (*store)(const HeadCache&, int64_t slot, const float* key, const float* value, int64_t head_dim);

  // Attention of `rows` queries `[rows, head_dim]` (`query_stride` floats apart, already scaled) over one head.
  // `visible[r]` is what query r sees. Output row r: activations at `out[r]`. `scores` holds
  // rows * score_stride floats; score_stride >= all visible slots rounded up to kKeyBlock.
  void (*attend)(const float* const* queries, const Visible* visible, int64_t rows, const HeadCache&,
                 int64_t head_dim, void* const* out, float* scores, int64_t score_stride);
  // Most rows of one `attend`, at most kMaxAttendRows.
  int attend_rows;

  // Places of the `count` highest of `length` logits, highest first, and their probabilities; count <= length.
  void (*likeliest)(const float* logits, int64_t length, int64_t count, int64_t* places, float* probs);
};

// The fastest table that this processor runs; `limit` names a slower one ("avx512bf16", "avx512", "avx2",
// "portable"), empty for none.
const Kernels& select_kernels(Element element, const char* limit);

}  // namespace agentspec
