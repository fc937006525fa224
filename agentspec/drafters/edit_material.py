"""What edit formats make of a request: their words around its path, and views of its edited file."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from agentspec.drafters import _native
from agentspec.drafters.formats import FormatTokens, find_tokens
from agentspec.drafters.token_classes import token_class
from agentspec.drafters.views import escaped, without_line_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentspec.drafters.base import DraftRequest, TextCodec
    from agentspec.index.snapshot import Document, Snapshot

PROSE_FILE = "prose.txt"
PROBE_TOKENS = 24
"""A run of the edited file that is looked for in the prompt to see whether the file is shown there as it is."""
MAX_VIEW_TOKENS = 60_000
"""Longer files get no view: tokenising them would hold up the request."""

Views = dict[str, list[_native.IndexedText]]


class EditMaterial:
    """The formats' contribution to one request.

    Args:
        request: with a codec.
        vocabulary: what is known of the codec's tokens.
        views: of this request's repository, by path; made on demand and kept there.
    """

    def __init__(self, request: DraftRequest, vocabulary: VocabularyMaterial, views: Views) -> None:
        assert request.codec is not None
        self._codec: TextCodec = request.codec
        self._request = request
        self._views = views
        self._document: Document | None = None
        if request.repository is not None and request.edited_path:
            self._document = request.repository.document(request.edited_path)
        self.vocabulary = vocabulary
        self.formats = vocabulary.formats

    def words(self) -> NDArray[np.int32]:
        """The fixed words of all formats around the edited path."""
        return self.formats.words(self._request.edited_path or "file")

    def vocabulary_size(self) -> int:
        """No token of this request, as far as it is known, is this large."""
        segments = self._request.repository.segments if self._request.repository is not None else ()
        largest = int(self._request.prompt.max(initial=0)) + 1
        return max([largest, *(segment.vocabulary_size for segment in segments)])

    def fence(self) -> NDArray[np.int32] | None:
        """The marker after which the edited file may come as a whole, if there is one."""
        return self.formats.fence(self._request.edited_path) if self._request.edited_path else None

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
            text = without_line_numbers(self._codec.decode(self._request.prompt.tolist()))
            return [self._encode(text), self._encode(escaped(text))] if text else []
        path = self._document.path
        if path not in self._views:
            assert self._request.repository is not None
            tokens = self._request.repository.tokens(self._document)
            short = len(tokens) <= MAX_VIEW_TOKENS
            self._views[path] = [self._encode(escaped(self._codec.decode(tokens.tolist())))] if short else []
        return self._views[path]

    def _encode(self, text: str) -> _native.IndexedText:
        return _native.IndexedText(np.array(self._codec.encode(text), np.int32))


class VocabularyMaterial:
    """What is the same for all requests of one tokenizer.

    Args:
        codec: the tokenizer.

    Attributes:
        formats: the edit formats in its tokens.
        prose: sentences as assistants write them around edits, in its tokens.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._classes: _native.TokenClasses | None = None
        self._size = 0
        self.formats = FormatTokens(codec)
        prose = (files(__package__) / PROSE_FILE).read_text()
        self.prose = _native.IndexedText(np.array(codec.encode(prose), np.int32))

    def classes(self, vocabulary_size: int) -> _native.TokenClasses:
        """What each token below `vocabulary_size` looks like."""
        if self._classes is None or vocabulary_size > self._size:
            kinds = [token_class(self._codec.decode([token])) for token in range(vocabulary_size)]
            self._classes = _native.TokenClasses(np.array(kinds, np.uint8))
            self._size = vocabulary_size
        return self._classes


class EditLibrary:
    """Keeps what is the same for all requests of a tokenizer, and the views of a repository for its own requests."""

    def __init__(self) -> None:
        self._vocabularies: WeakKeyDictionary[TextCodec, VocabularyMaterial] = WeakKeyDictionary()
        self._views: WeakKeyDictionary[Snapshot, Views] = WeakKeyDictionary()

    def material(self, request: DraftRequest) -> EditMaterial | None:
        """What the formats make of `request`; None without a codec."""
        if request.codec is None:
            return None
        vocabulary = self._vocabularies.get(request.codec)
        if vocabulary is None:
            vocabulary = self._vocabularies[request.codec] = VocabularyMaterial(request.codec)
        views = {} if request.repository is None else self._views.setdefault(request.repository, {})
        return EditMaterial(request, vocabulary, views)
