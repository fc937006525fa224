#include "segment.hpp"

#include <bit>
#include <cstring>

#include "checksum.hpp"

namespace agentspec {

static_assert(std::endian::native == std::endian::little, "segments are little-endian and mapped as they are");

struct Segment::Private {};

namespace {

constexpr char kMagic[8] = {'a', 'g', 'e', 'n', 't', 's', 'e', 'g'};

// A section's place; `next` is where the following one begins.
struct Section {
  std::uint64_t begin;
  std::uint64_t next;
};

Section section(std::uint64_t begin, std::uint64_t bytes) {
  return {begin, (begin + bytes + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment};
}

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw SegmentError("index segment " + path + " " + reason + "; build the index again");
}

SegmentHeader read_header(const std::string& path, const Mapping& mapping) {
  SegmentHeader header;
  if (mapping.size() < sizeof(header)) refuse(path, "is truncated");
  std::memcpy(&header, mapping.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) refuse(path, "is not an index segment");
  if (header.version != kSegmentVersion) {
    refuse(path, "has format " + std::to_string(header.version) + ", this version reads format " +
                     std::to_string(kSegmentVersion));
  }
  if (header.file_size != mapping.size()) {
    refuse(path, "has " + std::to_string(mapping.size()) + " bytes where " + std::to_string(header.file_size) +
                     " were written");
  }
  // Bounds that keep every sum below from overflowing; positions are 32 bits wide.
  const bool sane = header.token_count < 0xffffffffu && header.document_count <= header.token_count &&
                    header.definition_count <= header.file_size && header.name_bytes <= header.file_size &&
                    header.name_bytes < 0xffffffffu && header.vocabulary_size < 0x7fffffffu;
  if (!sane) refuse(path, "has a header that cannot be true");
  return header;
}

}  // namespace

std::shared_ptr<Segment> Segment::open(const std::string& path) { return std::make_shared<Segment>(Private{}, path); }

Segment::Segment(const Private&, const std::string& path) : path_(path), mapping_(path) {
  SegmentHeader header = read_header(path, mapping_);
  const Section documents =
      section(section(0, sizeof(header)).next, header.document_count * sizeof(DocumentEntry));
  const Section definitions = section(documents.next, header.definition_count * sizeof(DefinitionEntry));
  const Section names = section(definitions.next, header.name_bytes);
  const Section identifiers = section(names.next, (header.token_count + 7) / 8);
  const Section tokens = section(identifiers.next, header.token_count * sizeof(std::int32_t));
  const Section order =
      section(tokens.next, (header.token_count - header.document_count) * sizeof(std::uint32_t));
  if (order.next != header.file_size) refuse(path, "has sections that do not add up to its size");

  const std::uint64_t expected = header.checksum;
  header.checksum = 0;
  std::uint64_t actual = checksum(&header, sizeof(header), 0);
  actual = checksum(mapping_.data() + documents.begin, identifiers.begin - documents.begin, actual);
  if (actual != expected || mapping_.damaged()) refuse(path, "has damaged tables (checksum differs)");

  const std::byte* data = mapping_.data();
  vocabulary_size_ = static_cast<std::int32_t>(header.vocabulary_size);
  size_ = static_cast<std::int64_t>(header.token_count);
  order_size_ = static_cast<std::int64_t>(header.token_count - header.document_count);
  document_count_ = static_cast<std::int64_t>(header.document_count);
  definition_count_ = static_cast<std::int64_t>(header.definition_count);
  name_bytes_ = static_cast<std::uint32_t>(header.name_bytes);
  documents_ = reinterpret_cast<const DocumentEntry*>(data + documents.begin);
  definitions_ = reinterpret_cast<const DefinitionEntry*>(data + definitions.begin);
  names_ = reinterpret_cast<const char*>(data + names.begin);
  identifiers_ = reinterpret_cast<const std::uint8_t*>(data + identifiers.begin);
  tokens_ = reinterpret_cast<const std::int32_t*>(data + tokens.begin);
  order_ = reinterpret_cast<const std::uint32_t*>(data + order.begin);
}

Segment::~Segment() = default;

}  // namespace agentspec
