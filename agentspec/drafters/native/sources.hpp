// Every text that one request may copy from, and the candidates they yield.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "candidate.hpp"
#include "copy_cursors.hpp"
#include "echoes.hpp"
#include "indexed_text.hpp"
#include "repository_text.hpp"

namespace agentspec {

// What a token looks like; unknown where the tokenizer was not given.
enum class TokenClass : std::uint8_t { kUnknown, kNewline, kBlank, kSpacedWord, kWord, kPunctuation, kFence };
inline constexpr int kTokenClasses = 7;

// How many candidates a lookup may yield.
struct LookupLimits {
  int request;     // from the prompt and the output
  int extra;       // from each further text in memory
  int repository;  // from each segment
  int extra_enough;  // the same as `enough` for each further text in memory
  int enough;      // matches of a single token are looked at only when fewer candidates than this were found
};

inline constexpr std::uint32_t kRequestText = 0;

class Sources {
 public:
  explicit Sources(std::span<const Token> prompt);

  // Both return the index of the text, the name under which the functions below know it.
  std::uint32_t add_text(std::shared_ptr<const IndexedText> text, Origin origin);
  std::uint32_t add_segment(std::shared_ptr<const Segment> segment, std::vector<std::uint64_t> live);

  // Tokens [start, end) of a text are the file being edited.
  void set_edited(std::uint32_t text, std::int64_t start, std::int64_t end);

  // The text at `position` is likely to come next, whatever the context is.
  void start_draft(std::uint32_t text, std::int64_t position);

  void commit(std::span<const Token> tokens);
  // The output was copied from the text up to, but without, `position`; `left` tokens have followed since.
  void follow(std::uint32_t text, std::int64_t position, std::int64_t left) { cursors_.follow({text, position, left}); }

  // Tokens generated since the latest copy broke off; 0 while one is going on, `kMaxCursorAge` without any.
  std::int64_t tokens_since_left() const { return cursors_.youngest(); }

  // All candidates after `context`, which is the request or goes beyond its end.
  void find(std::span<const Token> context, const LookupLimits& limits, std::vector<Candidate>& found) const;
  // Places that need no match: where copying goes on, and draft starts.
  void add_expected(std::vector<Candidate>& found) const;
  // Places that the edit format calls for after `context`.
  void add_echoes(std::span<const Token> context, std::vector<Candidate>& found) const;
  bool may_echo(Token last) const { return echoes_.may_follow(last); }
  Echoes& echoes() { return echoes_; }
  Zone zone() const { return echoes_.zone(); }
  std::int64_t zone_start() const { return echoes_.zone_start(); }
  // Moves `candidate` to the next token of its text; false at the end of it.
  bool advance(Candidate& candidate, Zone zone) const;

  void set_token_classes(std::shared_ptr<const std::vector<TokenClass>> classes) { classes_ = std::move(classes); }
  TokenClass token_class(Token token) const {
    if (!classes_ || token < 0 || static_cast<std::size_t>(token) >= classes_->size()) return TokenClass::kUnknown;
    return (*classes_)[token];
  }

  std::span<const Text> texts() const { return texts_; }
  std::span<const Token> request() const { return request_.tokens(); }
  std::int64_t prompt_length() const { return prompt_length_; }
  int frequency(Token token) const { return request_.frequency(token); }

  // Forgets segments whose files were damaged since; true if there were any.
  bool drop_damaged();

 private:
  struct Extra {
    std::uint32_t text;
    std::shared_ptr<const IndexedText> indexed;
  };
  struct Repository {
    std::uint32_t text;
    RepositoryText indexed;
  };
  struct Range {
    std::uint32_t text;
    std::int64_t start, end;
  };

  void complete(Candidate& candidate) const;
  Origin origin_of(const Candidate& candidate) const;
  void add(Place place, bool called_for, std::vector<Candidate>& found) const;

  IndexedText request_;
  std::int64_t prompt_length_;
  std::vector<Extra> extras_;
  std::vector<Repository> repositories_;
  std::vector<Range> edited_;
  std::vector<Text> texts_;      // all of the above, by the index that names them
  std::vector<Origin> origins_;  // of each text as a whole
  CopyCursors cursors_;
  Echoes echoes_;
  std::shared_ptr<const std::vector<TokenClass>> classes_;
  std::vector<CopyCursor> starts_;  // draft starts for the next token only
};

}  // namespace agentspec
