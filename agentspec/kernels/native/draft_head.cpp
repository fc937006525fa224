#include "draft_head.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace agentspec {
namespace {

void embed(const void* embedding, Element element, int64_t token, int64_t width, float* out) {
  if (element == Element::kFloat32) {
    std::memcpy(out, static_cast<const float*>(embedding) + token * width, width * sizeof(float));
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(embedding) + token * width;
  for (int64_t i = 0; i < width; ++i) {
    const uint32_t bits = uint32_t{from[i]} << 16;
    std::memcpy(out + i, &bits, sizeof bits);
  }
}

int64_t bytes_per_head(const Decoder& decoder, int64_t slots) {
  return slots * decoder.shape().head_dim * (decoder.element() == Element::kFloat32 ? 4 : 2);
}

// Tokens behind the `length` that the memory holds.
SequenceTail tail(DraftMemory& memory, int64_t length) {
  return {.keys = memory.keys.data(), .values = memory.values.data(), .capacity = memory.slots, .length = length,
          .drafted = 0, .count = 0, .mask = nullptr};
}

}  // namespace

DraftMemory::DraftMemory(const Decoder& decoder, int64_t slots)
    : slots(slots),
      head_bytes(bytes_per_head(decoder, slots)),
      keys(decoder.shape().kv_heads * head_bytes),
      values(keys.size()) {}

void DraftMemory::shift(int64_t dropped) {
  const int64_t moved = head_bytes / slots * dropped;
  for (auto* memory : {&keys, &values}) {
    for (auto at = memory->data(); at != memory->data() + memory->size(); at += head_bytes) {
      std::memmove(at, at + moved, head_bytes - moved);
    }
  }
}

DraftHead::DraftHead(Decoder& decoder, const void* embedding, int64_t vocabulary, std::vector<int64_t> draft_to_target,
                     std::vector<float> frequencies, float rope_scale)
    : decoder_(decoder),
      embedding_(embedding),
      vocabulary_(vocabulary),
      draft_to_target_(std::move(draft_to_target)),
      frequencies_(std::move(frequencies)),
      rope_scale_(rope_scale) {}

// Runs `tokens`, whose streams are in `stream_`. Their positions are `position_step` apart. The streams of
// the rows wanted take the first places of `stream_`, and their logits those of `logits_`.
void DraftHead::run(const SequenceTail& tokens, const int64_t* following, int64_t position, int64_t position_step,
                    const std::vector<int64_t>& wanted) {
  const int64_t width = decoder_.shape().hidden, half = decoder_.shape().head_dim / 2;
  const auto rows = static_cast<int64_t>(wanted.size());
  embeddings_.resize(tokens.count * width);
  cosine_.resize(tokens.count * half);
  sine_.resize(tokens.count * half);
  logits_.resize(rows * decoder_.vocabulary());
  for (int64_t row = 0; row < tokens.count; ++row) {
    embed(embedding_, decoder_.element(), following[row], width, embeddings_.data() + row * width);
    if (row > 0 && position_step == 0) {
      std::copy_n(cosine_.begin(), half, cosine_.begin() + row * half);
      std::copy_n(sine_.begin(), half, sine_.begin() + row * half);
      continue;
    }
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position + row * position_step) * frequencies_[i];
      cosine_[row * half + i] = std::cos(angle) * rope_scale_;
      sine_[row * half + i] = std::sin(angle) * rope_scale_;
    }
  }
  decoder_.forward({.stream = stream_.data(), .embeddings = embeddings_.data(), .cosine = cosine_.data(),
                    .sine = sine_.data(), .tails = {tokens}, .rows = wanted.data(), .row_count = rows, .capture = {},
                    .logits = logits_.data(), .hidden = nullptr});
  for (int64_t row = 0; row < rows; ++row) {
    std::memmove(stream_.data() + row * width, stream_.data() + wanted[row] * width, width * sizeof(float));
  }
}

void DraftHead::read(DraftMemory& memory, int64_t length, const float* features, const int64_t* following,
                     int64_t rows, int64_t position) {
  const int64_t width = decoder_.shape().hidden;
  stream_.resize(rows * width);
  decoder_.fuse(features, rows, stream_.data());
  SequenceTail tokens = tail(memory, length);
  tokens.count = rows;
  run(tokens, following, position, 1, {rows - 1});
  memory.stream.assign(stream_.begin(), stream_.begin() + width);
  memory.logits.assign(logits_.begin(), logits_.end());
}

void DraftHead::draft(DraftMemory& memory, int64_t length, TreeGrowth& growth, int64_t position) {
  const int64_t width = decoder_.shape().hidden, vocabulary = decoder_.vocabulary();
  const int64_t children = std::min(growth.bounds().children, vocabulary);
  stream_ = memory.stream;
  logits_ = memory.logits;
  std::vector<int64_t> ids;
  std::vector<float> probs, sources;
  for (int64_t rows = 1;; rows = growth.rows()) {
    ids.resize(rows * children);
    probs.resize(rows * children);
    for (int64_t row = 0; row < rows; ++row) {
      decoder_.likeliest(logits_.data() + row * vocabulary, children, ids.data() + row * children,
                         probs.data() + row * children);
    }
    for (int64_t& id : ids) id = draft_to_target_[id];
    const int64_t level = growth.level();
    if (!growth.add_level(ids.data(), probs.data(), rows, children)) return;
    sources.swap(stream_);
    stream_.resize(growth.rows() * width);
    for (int64_t row = 0; row < growth.rows(); ++row) {
      std::copy_n(sources.begin() + growth.sources()[row] * width, width, stream_.begin() + row * width);
    }
    std::vector<int64_t> wanted(growth.rows());
    std::iota(wanted.begin(), wanted.end(), 0);
    SequenceTail nodes = tail(memory, length);
    nodes.drafted = growth.drafted();
    nodes.count = growth.rows();
    nodes.mask = growth.mask().data();
    run(nodes, growth.following().data(), position + level, 0, wanted);
  }
}

}  // namespace agentspec
