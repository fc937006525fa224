// A segment of the repository index: immutable, mapped read-only, shared by every module of the package.
//
// Accessors are inline, since another extension module reads them through this header alone; everything else lives in
// agentspec.index._native, which alone opens segments.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mapping.hpp"

namespace agentspec {

inline constexpr std::int32_t kSeparator = -1;       // between documents; never part of a draft
inline constexpr std::uint32_t kNoDocument = 0xffffffffu;
inline constexpr int kContextDepth = 32;             // tokens of left context that the order looks at
inline constexpr std::size_t kSectionAlignment = 64; // bytes
inline constexpr std::uint32_t kSegmentVersion = 1;

// The file: header, documents, definitions, names, identifier bits, tokens, order; little-endian, each section
// aligned to kSectionAlignment. Offsets follow from the counts, so none is stored.
struct SegmentHeader {
  char magic[8];
  std::uint32_t version;
  std::uint32_t vocabulary_size;
  std::uint64_t file_size;
  std::uint64_t token_count;       // separators included
  std::uint64_t document_count;
  std::uint64_t definition_count;
  std::uint64_t name_bytes;
  std::uint64_t checksum;          // of the header with this field zero, then of documents, definitions and names
};
static_assert(sizeof(SegmentHeader) == 64);

// Tokens [start, start + length), followed by a separator.
struct DocumentEntry {
  std::uint32_t start;
  std::uint32_t length;
  std::array<std::uint8_t, 20> blob;  // names the file's content and language
};
static_assert(sizeof(DocumentEntry) == 28);

// Sorted by name, then by start.
struct DefinitionEntry {
  std::uint32_t name;             // offset of its zero-terminated UTF-8 name
  std::uint32_t start;            // first token, counted from the start of the segment
  std::uint32_t length_and_kind;  // length << 8 | kind
};
static_assert(sizeof(DefinitionEntry) == 12);

// Every value read from a segment may be wrong once its file was damaged. Check it against the sizes, which do not
// change, before it is used as an index; ask damaged() after a lookup and drop the result when it says so.
// All members may be called from several threads at once.
class Segment : public std::enable_shared_from_this<Segment> {
 public:
  // Throws SegmentError: missing, truncated, of another format, or with tables that fail their checksum.
  static std::shared_ptr<Segment> open(const std::string& path);
  ~Segment();

  const std::string& path() const { return path_; }
  std::int64_t file_size() const { return static_cast<std::int64_t>(mapping_.size()); }
  // Every token of an undamaged segment is kSeparator or in [0, vocabulary_size()).
  std::int32_t vocabulary_size() const { return vocabulary_size_; }

  // `int32[size()]`: the documents one after another, a separator behind each.
  std::int64_t size() const { return size_; }
  const std::int32_t* tokens() const { return tokens_; }

  // `uint32[order_size()]`: every position that holds a token, sorted by left context: tokens[p], tokens[p - 1], ...
  // down to kContextDepth tokens or the separator, which sorts lowest; equal contexts by position.
  std::int64_t order_size() const { return order_size_; }
  const std::uint32_t* order() const { return order_; }

  // `DocumentEntry[document_count()]`, by ascending start.
  std::int64_t document_count() const { return document_count_; }
  const DocumentEntry* documents() const { return documents_; }

  // The document that holds the token at `position`; kNoDocument for a separator or outside the segment.
  std::uint32_t document_at(std::int64_t position) const {
    const DocumentEntry* end = documents_ + document_count_;
    const DocumentEntry* after = std::upper_bound(
        documents_, end, position, [](std::int64_t value, const DocumentEntry& entry) { return value < entry.start; });
    if (position < 0 || after == documents_) return kNoDocument;
    const DocumentEntry& entry = after[-1];
    if (position - entry.start >= entry.length) return kNoDocument;
    return static_cast<std::uint32_t>(after - documents_ - 1);
  }

  // `DefinitionEntry[definition_count()]`.
  std::int64_t definition_count() const { return definition_count_; }
  const DefinitionEntry* definitions() const { return definitions_; }
  std::string_view name_of(const DefinitionEntry& definition) const {
    if (definition.name >= name_bytes_) return {};
    const char* name = names_ + definition.name;
    const char* end = std::find(name, names_ + name_bytes_, '\0');
    return {name, static_cast<std::size_t>(end - name)};
  }

  // Whether the token at `position` lies in an identifier leaf of the syntax tree; false outside the segment.
  bool is_identifier(std::int64_t position) const {
    if (position < 0 || position >= size_) return false;
    return (identifiers_[position / 8] >> (position % 8) & 1) != 0;
  }
  // `uint8[(size() + 7) / 8]`: bit p % 8 of byte p / 8.
  const std::uint8_t* identifiers() const { return identifiers_; }

  bool damaged() const { return mapping_.damaged(); }

  struct Private;  // only open() makes segments
  Segment(const Private&, const std::string& path);

 private:
  std::string path_;
  Mapping mapping_;
  std::int32_t vocabulary_size_ = 0;
  std::int64_t size_ = 0;
  std::int64_t order_size_ = 0;
  std::int64_t document_count_ = 0;
  std::int64_t definition_count_ = 0;
  std::uint32_t name_bytes_ = 0;
  const DocumentEntry* documents_ = nullptr;
  const DefinitionEntry* definitions_ = nullptr;
  const char* names_ = nullptr;
  const std::uint8_t* identifiers_ = nullptr;
  const std::int32_t* tokens_ = nullptr;
  const std::uint32_t* order_ = nullptr;
};

}  // namespace agentspec
