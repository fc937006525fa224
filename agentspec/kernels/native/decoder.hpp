// A whole Llama-like decoder on the CPU: one call runs all layers without returning to Python.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "huge_memory.hpp"
#include "kernels.hpp"
#include "packed_matrix.hpp"
#include "thread_pool.hpp"

namespace agentspec {

struct DecoderShape {
  int64_t hidden;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t intermediate;
  float norm_epsilon;
};

struct DecoderLayer {
  std::vector<float> attention_norm;
  std::vector<float> embedding_norm;  // of an EAGLE-3 head's layer, which reads embeddings beside the stream
  std::vector<float> query_norm;  // empty where the model has none
  std::vector<float> key_norm;
  std::vector<float> feed_norm;
  PackedMatrix qkv;
  PackedMatrix output;
  PackedMatrix gate_up;
  PackedMatrix down;
};

// The new tokens of one sequence. Keys and values of all layers: see agentspec/engines/local/kv_cache.py.
struct SequenceTail {
  std::byte* keys;
  std::byte* values;
  int64_t capacity;
  int64_t length;       // committed tokens
  int64_t drafted;      // slots behind them that earlier passes have filled; seen where the mask says so
  int64_t count;        // new tokens, written to the slots behind those
  const uint8_t* mask;  // [count, drafted + count], or null for causal, where nothing is drafted
};

// Operands of one forward pass over the concatenated tails, M tokens in all.
struct Batch {
  float* stream;            // [M, hidden]: the stream that enters the first layer; leaves the last one in the rows wanted
  const float* embeddings;  // [M, hidden], or null: what layers with an `embedding_norm` read beside the stream
  const float* cosine;  // [M, head_dim / 2]
  const float* sine;
  std::vector<SequenceTail> tails;
  const int64_t* rows;  // [R], tokens whose logits are wanted
  int64_t row_count;
  std::vector<int64_t> capture;  // layers whose input stream is wanted
  float* logits;                 // [R, vocabulary]
  float* hidden;                 // [M, captures * hidden]
};

class Decoder {
 public:
  // `bytes`: products with weights of 8 bits where the processor has instructions for them.
  Decoder(const DecoderShape& shape, Element element, bool bytes, int threads, const char* instruction_set);

  void add_layer(DecoderLayer layer) { layers_.push_back(std::move(layer)); }
  void set_head(std::vector<float> norm, PackedMatrix head);
  // Never of bytes: single numbers of a stream can be a thousand times its others.
  void set_fusion(PackedMatrix fusion) { fusion_ = std::move(fusion); }
  void set_threads(int threads) { pool_ = std::make_unique<ThreadPool>(threads); }
  void forward(const Batch& batch);
  // stream [rows, hidden] = fusion * features [rows, depth of the fusion].
  void fuse(const float* features, int64_t rows, float* stream);
  // Of a row of logits, the `count` likeliest tokens, best first, and their probabilities.
  void likeliest(const float* logits, int64_t count, int64_t* tokens, float* probs) const {
    kernels_.likeliest(logits, vocabulary(), count, tokens, probs);
  }

  // Where the matrices given to this decoder must lie. Passes read them in the order in which they were taken: each
  // layer's, then the head.
  HugeMemory& weight_memory() { return weight_memory_; }
  const DecoderShape& shape() const { return shape_; }
  Element element() const { return kernels_.element; }
  // Whether the matrices of the layers and the head must be of bytes.
  bool bytes() const { return bytes_; }
  int64_t vocabulary() const { return head_.columns(); }
  int64_t fusion_depth() const { return fusion_.depth(); }
  // Whether `forward` needs embeddings: the layers are an EAGLE-3 head's.
  bool reads_embeddings() const { return !layers_.empty() && !layers_.front().embedding_norm.empty(); }
  const char* instruction_set() const { return kernels_.name; }

 private:
  void prepare(const Batch& batch);
  template <class Body>
  void each_row(int64_t rows, const Body& body);
  void normalise(const float* stream, int64_t rows, const std::vector<float>& weight, std::byte* activations,
                 int64_t stride);
  void enter_attention(const Batch& batch, const DecoderLayer& layer, int64_t tokens);
  const Products& products(const PackedMatrix& matrix) const;
  template <class Body>
  void each_panel(const PackedMatrix& matrix, const std::byte* activations, int64_t rows, const Body& body);
  void multiply(const PackedMatrix& matrix, const std::byte* activations, int64_t rows, float* out, bool add);
  void multiply_gated(const PackedMatrix& matrix, const std::byte* activations, int64_t rows, std::byte* out);
  void rotate_and_store(const Batch& batch, size_t index);
  void attend(const Batch& batch, size_t index, const std::vector<int64_t>& chosen);
  void leave_attention(const DecoderLayer& layer, int64_t rows, float* stream);
  HeadCache head_cache(const SequenceTail& tail, size_t layer, int64_t head) const;

  DecoderShape shape_;
  const Kernels& kernels_;
  const bool bytes_;
  std::unique_ptr<ThreadPool> pool_;
  HugeMemory weight_memory_;
  std::vector<DecoderLayer> layers_;
  std::vector<float> norm_;
  PackedMatrix head_, fusion_;

  // Scratch of one pass, kept between passes.
  std::vector<std::byte> activations_, wide_activations_, packed_;
  std::vector<float> qkv_, picked_, row_scales_;
  std::vector<int32_t> row_sums_;
  std::vector<std::vector<float>> scores_;  // one a thread
  std::vector<int64_t> tail_of_token_, token_in_tail_;
  std::vector<Visible> visible_;  // one a token
  std::vector<int32_t> extra_;
};

}  // namespace agentspec
