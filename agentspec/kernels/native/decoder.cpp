#include "decoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace agentspec {
namespace {

// Below this many rows, handing row-wise work to other threads costs more than it saves.
constexpr int64_t kRowsWorthSharing = 6;
// Runs of panels handed to each thread: enough that none waits long for another, few enough that most are long.
constexpr int64_t kRunsPerThread = 5;

template <class T>
void grow(std::vector<T>& buffer, int64_t size) {
  if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(size);
}

}  // namespace

Decoder::Decoder(const DecoderShape& shape, Element element, bool bytes, int threads, const char* instruction_set)
    : shape_(shape),
      kernels_(select_kernels(element, instruction_set)),
      bytes_(bytes && kernels_.integers != nullptr),
      pool_(std::make_unique<ThreadPool>(threads)) {}

void Decoder::set_head(std::vector<float> norm, PackedMatrix head) {
  norm_ = std::move(norm);
  head_ = std::move(head);
}

template <class Body>
void Decoder::each_row(int64_t rows, const Body& body) {
  if (rows < kRowsWorthSharing) {
    for (int64_t row = 0; row < rows; ++row) body(row, 0);
  } else {
    pool_->run(static_cast<uint32_t>(rows), body);
  }
}

// Sizes the scratch memory and works out what every token sees.
void Decoder::prepare(const Batch& batch) {
  int64_t tokens = 0, longest = 0, extras = 0;
  for (const SequenceTail& tail : batch.tails) {
    tokens += tail.count;
    longest = std::max(longest, tail.length + tail.drafted + tail.count);
    if (tail.mask != nullptr) extras += tail.count * (tail.drafted + tail.count);
  }
  const int64_t queries = shape_.heads * shape_.head_dim;
  const int64_t rows = std::max(tokens, batch.row_count);
  const int64_t entering = batch.embeddings == nullptr ? shape_.hidden : 2 * shape_.hidden;
  grow(activations_, rows * std::max(entering, queries) * kernels_.activation_bytes);
  grow(wide_activations_, rows * shape_.intermediate * kernels_.activation_bytes);
  grow(packed_, rows * std::max({entering, queries, shape_.intermediate}) * kernels_.activation_bytes);
  grow(qkv_, tokens * (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim);
  grow(picked_, batch.row_count * shape_.hidden);
  scores_.resize(pool_->threads());
  const int64_t stride = (longest + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  for (auto& scores : scores_) grow(scores, stride * kernels_.attend_rows);

  tail_of_token_.clear();
  token_in_tail_.clear();
  visible_.clear();
  grow(extra_, extras);  // never moves while `visible_` points into it
  int32_t* next = extra_.data();
  for (size_t index = 0; index < batch.tails.size(); ++index) {
    const SequenceTail& tail = batch.tails[index];
    for (int64_t token = 0; token < tail.count; ++token) {
      tail_of_token_.push_back(static_cast<int64_t>(index));
      token_in_tail_.push_back(token);
      if (tail.mask == nullptr) {
        visible_.push_back({tail.length + token + 1, nullptr, 0});
        continue;
      }
      const int64_t own = tail.drafted + token;
      const uint8_t* sees = tail.mask + token * (tail.drafted + tail.count);
      int64_t leading = 0;
      while (leading <= own && sees[leading]) ++leading;
      const int32_t* first = next;
      for (int64_t other = leading; other <= own; ++other) {
        if (sees[other]) *next++ = static_cast<int32_t>(tail.length + other);
      }
      visible_.push_back({tail.length + leading, first, next - first});
    }
  }
}

// Writes rows of activations `stride` elements apart.
void Decoder::normalise(const float* stream, int64_t rows, const std::vector<float>& weight, std::byte* activations,
                        int64_t stride) {
  each_row(rows, [&](int64_t row, int) {
    kernels_.rms_norm(stream + row * shape_.hidden, weight.data(), shape_.norm_epsilon, shape_.hidden,
                      activations + row * stride * kernels_.activation_bytes);
  });
}

// The activations that the attention of a layer projects: the stream, behind the embeddings where the layer reads them.
void Decoder::enter_attention(const Batch& batch, const DecoderLayer& layer, int64_t tokens) {
  if (layer.embedding_norm.empty()) {
    normalise(batch.stream, tokens, layer.attention_norm, activations_.data(), shape_.hidden);
    return;
  }
  std::byte* streams = activations_.data() + shape_.hidden * kernels_.activation_bytes;
  normalise(batch.embeddings, tokens, layer.embedding_norm, activations_.data(), 2 * shape_.hidden);
  normalise(batch.stream, tokens, layer.attention_norm, streams, 2 * shape_.hidden);
}

const Products& Decoder::products(const PackedMatrix& matrix) const {
  return matrix.bytes() ? *kernels_.integers : kernels_.products;
}

// Calls `body(product, panel)` for every panel of the matrix. Panels are handed out in runs of neighbours: a product
// fetches what lies behind its panel.
template <class Body>
void Decoder::each_panel(const PackedMatrix& matrix, const std::byte* activations, int64_t rows, const Body& body) {
  if (rows == 0) return;  // no logits were wanted
  // A single row of numbers is in the order of products as it is.
  if (rows > 1 || matrix.bytes()) {
    grow(row_scales_, rows);
    grow(row_sums_, rows);
    const PackedRows packed{packed_.data(), row_scales_.data(), row_sums_.data()};
    products(matrix).pack(activations, rows, matrix.depth(), packed);
    activations = packed_.data();
  }
  const int64_t panels = matrix.panels();
  const int64_t run = std::max<int64_t>(1, panels / (pool_->threads() > 1 ? kRunsPerThread * pool_->threads() : 1));
  pool_->run(static_cast<uint32_t>((panels + run - 1) / run), [&](uint32_t number, int) {
    const int64_t end = std::min(panels, (number + 1) * run);
    for (int64_t panel = number * run; panel < end; ++panel) {
      body(PanelProduct{activations, rows, matrix.depth(), matrix.panel(panel), matrix.bias(panel),
                        matrix.scales(panel), row_scales_.data(), row_sums_.data()},
           panel);
    }
  });
}

void Decoder::multiply(const PackedMatrix& matrix, const std::byte* activations, int64_t rows, float* out, bool add) {
  const auto function = add ? products(matrix).product_add : products(matrix).product;
  each_panel(matrix, activations, rows, [&](const PanelProduct& product, int64_t panel) {
    function(product, out + panel * kPanelColumns, matrix.columns(), matrix.width(panel));
  });
}

void Decoder::multiply_gated(const PackedMatrix& matrix, const std::byte* activations, int64_t rows, std::byte* out) {
  constexpr int64_t half = kPanelColumns / 2;
  const auto function = products(matrix).product_gated;
  each_panel(matrix, activations, rows, [&](const PanelProduct& product, int64_t panel) {
    function(product, out + panel * half * kernels_.activation_bytes, matrix.columns() / 2);
  });
}

HeadCache Decoder::head_cache(const SequenceTail& tail, size_t layer, int64_t head) const {
  const int64_t element = kernels_.element == Element::kFloat32 ? 4 : 2;
  const int64_t offset =
      (static_cast<int64_t>(layer) * shape_.kv_heads + head) * tail.capacity * shape_.head_dim * element;
  return {tail.keys + offset, tail.values + offset};
}

void Decoder::rotate_and_store(const Batch& batch, size_t index) {
  const DecoderLayer& layer = layers_[index];
  const int64_t width = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
  const float query_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  each_row(static_cast<int64_t>(visible_.size()), [&](int64_t token, int) {
    const float* cosine = batch.cosine + token * shape_.head_dim / 2;
    const float* sine = batch.sine + token * shape_.head_dim / 2;
    float* heads = qkv_.data() + token * width;
    for (int64_t head = 0; head < shape_.heads + shape_.kv_heads; ++head) {
      const bool query = head < shape_.heads;
      const auto& norm = query ? layer.query_norm : layer.key_norm;
      float* at = heads + head * shape_.head_dim;
      if (!norm.empty()) kernels_.rms_norm_inplace(at, norm.data(), shape_.norm_epsilon, shape_.head_dim);
      kernels_.rotate(at, cosine, sine, shape_.head_dim, query ? query_scale : 1.0f);
    }
    const SequenceTail& tail = batch.tails[tail_of_token_[token]];
    for (int64_t head = 0; head < shape_.kv_heads; ++head) {
      const float* key = heads + (shape_.heads + head) * shape_.head_dim;
      kernels_.store(head_cache(tail, index, head), tail.length + tail.drafted + token_in_tail_[token], key,
                     key + shape_.kv_heads * shape_.head_dim, shape_.head_dim);
    }
  });
}

// Attention of the tokens in `chosen`, those of a sequence together; their outputs are neighbours in the activations.
// Work items are (sequence, key/value head, block of queries); a query is a (token, head of the group) pair.
void Decoder::attend(const Batch& batch, size_t index, const std::vector<int64_t>& chosen) {
  const int64_t group = shape_.heads / shape_.kv_heads;
  const int64_t width = (shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
  const int64_t block = kernels_.attend_rows;
  struct Item {
    const SequenceTail* tail;
    int64_t first, count, head, first_query;  // `count` entries of `chosen` from `first` on belong to the sequence
  };
  std::vector<Item> items;
  for (size_t first = 0, last = 0; first < chosen.size(); first = last) {
    const int64_t tail = tail_of_token_[chosen[first]];
    while (last < chosen.size() && tail_of_token_[chosen[last]] == tail) ++last;
    const auto count = static_cast<int64_t>(last - first);
    for (int64_t head = 0; head < shape_.kv_heads; ++head) {
      for (int64_t query = 0; query < count * group; query += block) {
        items.push_back({&batch.tails[tail], static_cast<int64_t>(first), count, head, query});
      }
    }
  }
  pool_->run(static_cast<uint32_t>(items.size()), [&](uint32_t number, int thread) {
    const Item& item = items[number];
    const int64_t rows = std::min(block, item.count * group - item.first_query);
    const float* queries[kMaxAttendRows];
    void* outputs[kMaxAttendRows];
    Visible visible[kMaxAttendRows];
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t place = item.first + (item.first_query + row) / group;
      const int64_t token = chosen[place];
      const int64_t head = item.head * group + (item.first_query + row) % group;
      queries[row] = qkv_.data() + token * width + head * shape_.head_dim;
      outputs[row] =
          activations_.data() + (place * shape_.heads + head) * shape_.head_dim * kernels_.activation_bytes;
      visible[row] = visible_[token];
    }
    const int64_t stride = static_cast<int64_t>(scores_[thread].size()) / block / kKeyBlock * kKeyBlock;
    kernels_.attend(queries, visible, rows, head_cache(*item.tail, index, item.head), shape_.head_dim, outputs,
                    scores_[thread].data(), stride);
  });
}

// What follows the attention of a layer, over `rows` of the stream.
void Decoder::leave_attention(const DecoderLayer& layer, int64_t rows, float* stream) {
  multiply(layer.output, activations_.data(), rows, stream, true);
  normalise(stream, rows, layer.feed_norm, activations_.data(), shape_.hidden);
  multiply_gated(layer.gate_up, activations_.data(), rows, wide_activations_.data());
  multiply(layer.down, wide_activations_.data(), rows, stream, true);
}

void Decoder::forward(const Batch& batch) {
  prepare(batch);
  const auto tokens = static_cast<int64_t>(visible_.size());
  const auto captures = static_cast<int64_t>(batch.capture.size());
  const size_t row_bytes = shape_.hidden * sizeof(float);
  std::vector<int64_t> all(tokens);
  for (int64_t token = 0; token < tokens; ++token) all[token] = token;
  // Behind the last layer's keys and values only the rows matter whose logits are wanted.
  const std::vector<int64_t> wanted(batch.rows, batch.rows + batch.row_count);
  int64_t captured = 0;
  for (size_t index = 0; index < layers_.size(); ++index) {
    const DecoderLayer& layer = layers_[index];
    if (captured < captures && batch.capture[captured] == static_cast<int64_t>(index)) {
      for (int64_t token = 0; token < tokens; ++token) {
        std::memcpy(batch.hidden + (token * captures + captured) * shape_.hidden,
                    batch.stream + token * shape_.hidden, row_bytes);
      }
      ++captured;
    }
    enter_attention(batch, layer, tokens);
    multiply(layer.qkv, activations_.data(), tokens, qkv_.data(), false);
    rotate_and_store(batch, index);
    if (index + 1 < layers_.size()) {
      attend(batch, index, all);
      leave_attention(layer, tokens, batch.stream);
      continue;
    }
    attend(batch, index, wanted);
    for (int64_t row = 0; row < batch.row_count; ++row) {
      std::memcpy(picked_.data() + row * shape_.hidden, batch.stream + wanted[row] * shape_.hidden, row_bytes);
    }
    leave_attention(layer, batch.row_count, picked_.data());
    for (int64_t row = 0; row < batch.row_count; ++row) {
      std::memcpy(batch.stream + wanted[row] * shape_.hidden, picked_.data() + row * shape_.hidden, row_bytes);
    }
  }
  normalise(picked_.data(), batch.row_count, norm_, activations_.data(), shape_.hidden);
  multiply(head_, activations_.data(), batch.row_count, batch.logits, false);
}

void Decoder::fuse(const float* features, int64_t rows, float* stream) {
  const int64_t width = fusion_.depth();
  grow(activations_, rows * width * kernels_.activation_bytes);
  grow(packed_, rows * width * kernels_.activation_bytes);
  each_row(rows, [&](int64_t row, int) {
    kernels_.activate(features + row * width, width, activations_.data() + row * width * kernels_.activation_bytes);
  });
  multiply(fusion_, activations_.data(), rows, stream, false);
}

}  // namespace agentspec
