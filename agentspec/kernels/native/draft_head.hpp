// An EAGLE-3 head that reads a text's captured streams and drafts what follows, each in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "decoder.hpp"
#include "tree_growth.hpp"

namespace agentspec {

// What a head keeps of one text: keys and values of `slots` tokens, and its results at the last token read.
struct DraftMemory {
  DraftMemory(const Decoder& decoder, int64_t slots);
  // Moves the slots from `dropped` on to the front; a multiple of kKeyBlock.
  void shift(int64_t dropped);

  const int64_t slots, head_bytes;  // bytes of the keys of one head, as of the values
  std::vector<std::byte> keys, values;
  std::vector<float> stream;  // [hidden], empty before anything was read
  std::vector<float> logits;  // [draft vocabulary]
};

class DraftHead {
 public:
  // `decoder` holds the head's layer and its fusion; `embedding` is the target's, [vocabulary, hidden] of the
  // decoder's element; both outlive this. `draft_to_target` are the target's ids of the draft vocabulary, `frequencies`
  // those of the rotary embedding, [head_dim / 2], and `rope_scale` the factor of its cosines and sines.
  DraftHead(Decoder& decoder, const void* embedding, int64_t vocabulary, std::vector<int64_t> draft_to_target,
            std::vector<float> frequencies, float rope_scale);

  // Takes in `rows` tokens behind the `length` that the memory holds: the target's streams `features` at them, and the
  // token after each. The first of them is at `position` of the text.
  void read(DraftMemory& memory, int64_t length, const float* features, const int64_t* following, int64_t rows,
            int64_t position);
  // Grows a tree after the last token read; `position` is that of its first level.
  void draft(DraftMemory& memory, int64_t length, TreeGrowth& growth, int64_t position);

  const Decoder& decoder() const { return decoder_; }
  int64_t vocabulary() const { return vocabulary_; }

 private:
  void run(const SequenceTail& tokens, const int64_t* following, int64_t position, int64_t position_step,
           const std::vector<int64_t>& wanted);

  Decoder& decoder_;
  const void* embedding_;
  int64_t vocabulary_;
  std::vector<int64_t> draft_to_target_;
  std::vector<float> frequencies_;
  float rope_scale_;

  // Scratch of one pass: its streams and logits stay for the next.
  std::vector<float> stream_, logits_, embeddings_, cosine_, sine_;
};

}  // namespace agentspec
