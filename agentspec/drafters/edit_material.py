"""What edit formats make of a request: their words around its path, and views of its edited file."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from agentspec.drafters import _native
from agentspec.drafters.escaped_view import EscapedSpelling, cuts_hold
from agentspec.drafters.formats import FormatTokens, find_tokens
from agentspec.drafters.token_classes import TokenTable
from agentspec.drafters.views import prefixed, without_line_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentspec.drafters.base import DraftRequest, TextCodec
    from agentspec.index.snapshot import Document, Snapshot

PROSE_FILE = "prose.txt"
PROBE_TOKENS = 24
"""A run of the edited file that is looked for in the prompt to see whether the file is shown there as it is."""
MAX_VIEW_TOKENS = 60_000
"""Longer files get no view: spelling them anew would hold up the request."""


@dataclass(frozen=True, slots=True)
class FormatWords:
    """The fixed words of all formats around one path.

    Attributes:
        text: the words.
        closes: where in them each of the formats' closing markers stands; None: nowhere.
        fence: the marker after which the file may come as a whole, if there is one.
    """

    text: _native.IndexedText
    closes: tuple[int | None, ...]
    fence: NDArray[np.int32] | None


@dataclass(slots=True)
class RepositoryMaterial:
    """What is kept for the requests of one repository, and for no others.

    Attributes:
        spelling: of its files inside JSON strings.
        words: by path.
        views: of edited files, escaped, by path.
        patch_views: of edited files, as the lines of patches, by path.
    """

    spelling: EscapedSpelling
    words: dict[str, FormatWords] = field(default_factory=dict)
    views: dict[str, list[_native.IndexedText]] = field(default_factory=dict)
    patch_views: dict[str, list[_native.IndexedText]] = field(default_factory=dict)


class EditMaterial:
    """The formats' contribution to one request.

    Args:
        request: with a codec.
        vocabulary: what is known of the codec's tokens.
        kept: what is kept for this request's repository; completed on demand.
    """

    def __init__(self, request: DraftRequest, vocabulary: VocabularyMaterial, kept: RepositoryMaterial) -> None:
        self._request = request
        self._kept = kept
        self._document: Document | None = None
        if request.repository is not None and request.edited_path:
            self._document = request.repository.document(request.edited_path)
        self.vocabulary = vocabulary
        self.formats = vocabulary.formats

    def words(self) -> FormatWords:
        """The fixed words of all formats around the edited path."""
        path = self._request.edited_path or "file"
        if path not in self._kept.words:
            tokens = self.formats.words(path)
            closes = tuple(find_tokens(tokens, pair.close) for pair in self.formats.pairs)
            self._kept.words[path] = FormatWords(_native.IndexedText(tokens), closes, self.formats.fence(path))
        return self._kept.words[path]

    def vocabulary_size(self) -> int:
        """No token of this request, as far as it is known, is this large."""
        segments = self._request.repository.segments if self._request.repository is not None else ()
        largest = int(self._request.prompt.max(initial=0)) + 1
        return max([largest, *(segment.vocabulary_size for segment in segments)])

    @property
    def is_indexed(self) -> bool:
        """Whether the repository holds the edited file."""
        return self._document is not None

    def shown_raw(self) -> bool:
        """Whether the prompt holds the edited file as it is, so that the answer need not be a tool call."""
        if self._document is None:
            return True
        assert self._request.repository is not None
        tokens = self._request.repository.tokens(self._document)
        middle = max(len(tokens) // 2 - PROBE_TOKENS // 2, 0)
        probe = tokens[middle : middle + PROBE_TOKENS]
        return not len(probe) or find_tokens(self._request.prompt, probe) is not None

    def views(self) -> list[_native.IndexedText]:
        """The edited file escaped for JSON; where it is not indexed, what numbered views show, raw and escaped."""
        if self._document is None:
            text = without_line_numbers(self.vocabulary.codec.decode(self._request.prompt.tolist()))
            if not text:
                return []
            lines = np.array(self.vocabulary.codec.encode(text), np.int32)
            return [_native.IndexedText(lines), _native.IndexedText(self._kept.spelling.spell(lines))]
        path = self._document.path
        if path not in self._kept.views:
            assert self._request.repository is not None
            tokens = self._request.repository.tokens(self._document)
            short = len(tokens) <= MAX_VIEW_TOKENS
            self._kept.views[path] = [_native.IndexedText(self._kept.spelling.spell(tokens))] if short else []
        return self._kept.views[path]

    def patch_views(self) -> list[_native.IndexedText]:
        """The edited file as context, removed and added lines of a patch; none where it is not indexed or too long."""
        if self._document is None:
            return []
        path = self._document.path
        if path not in self._kept.patch_views:
            assert self._request.repository is not None
            tokens, codec = self._request.repository.tokens(self._document), self.vocabulary.codec
            text = codec.decode(tokens.tolist()) if len(tokens) <= MAX_VIEW_TOKENS else ""
            spelt = [np.array(codec.encode(prefixed(text, prefix)), np.int32) for prefix in " -+" if text]
            self._kept.patch_views[path] = [_native.IndexedText(view) for view in spelt]
        return self._kept.patch_views[path]


class VocabularyMaterial:
    """What is the same for all requests of one tokenizer.

    Args:
        codec: the tokenizer.

    Attributes:
        codec: the tokenizer.
        formats: the edit formats in its tokens.
        prose: sentences as assistants write them around edits, in its tokens.
    """

    def __init__(self, codec: TextCodec) -> None:
        self.codec = codec
        self._table = TokenTable(codec)
        self._classes: _native.TokenClasses | None = None
        self.formats = FormatTokens(codec)
        prose = (files(__package__) / PROSE_FILE).read_text()
        self.prose = _native.IndexedText(np.array(codec.encode(prose), np.int32))

    def classes(self, vocabulary_size: int) -> _native.TokenClasses:
        """What each token below `vocabulary_size` looks like."""
        if self._table.cover(vocabulary_size) or self._classes is None:
            self._classes = _native.TokenClasses(self._table.classes)
        return self._classes

    def spelling(self) -> EscapedSpelling:
        """A new translation into escaped text."""
        return EscapedSpelling(self.codec, self._table, self._cuts_hold)

    @cached_property
    def _cuts_hold(self) -> bool:
        return cuts_hold(self.codec, self._table)


class EditLibrary:
    """Keeps what is the same for all requests of a tokenizer, and what belongs to a repository for its own requests."""

    def __init__(self) -> None:
        self._vocabularies: WeakKeyDictionary[TextCodec, VocabularyMaterial] = WeakKeyDictionary()
        self._repositories: WeakKeyDictionary[Snapshot, RepositoryMaterial] = WeakKeyDictionary()

    def material(self, request: DraftRequest) -> EditMaterial | None:
        """What the formats make of `request`; None without a codec."""
        if request.codec is None:
            return None
        vocabulary = self._vocabularies.get(request.codec)
        if vocabulary is None:
            vocabulary = self._vocabularies[request.codec] = VocabularyMaterial(request.codec)
        kept = None if request.repository is None else self._repositories.get(request.repository)
        if kept is None:
            kept = RepositoryMaterial(vocabulary.spelling())
            if request.repository is not None:
                self._repositories[request.repository] = kept
        return EditMaterial(request, vocabulary, kept)
