"""Simple drafters to compare with: none, longest suffix.

They follow the drafter contract, so one replay loop drives them and the real one. They are yardsticks of tokens per
step; being Python, their latencies say little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentspec.drafters.base import Budget, Drafter, DraftReceipt, DraftRequest, DraftSession
from agentspec.drafters.tree import DraftTree, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

MAX_SUFFIX = 64
"""Matches longer than this are told apart no further."""
_SEPARATOR = -1


def chain(tokens: NDArray[np.int32], source: Source) -> DraftTree:
    """A draft without branches, every token as sure as the next."""
    count = len(tokens)
    return DraftTree(
        tokens=np.ascontiguousarray(tokens, np.int32),
        parents=np.arange(-1, count - 1, dtype=np.int32),
        prob=np.ones(count, np.float32),
        source=np.full(count, source, np.uint8),
    )


class _Context:
    """Prompt and output so far behind repository documents, in one buffer that grows.

    Attributes:
        private: length of the documents in front; what follows is the request's own.
    """

    def __init__(self, documents: Sequence[NDArray[np.int32]], prompt: NDArray[np.int32]) -> None:
        separator = np.array([_SEPARATOR], np.int32)
        parts = [part for document in documents for part in (document, separator)]
        self.private = sum(map(len, parts))
        self._buffer = np.concatenate([*parts, prompt])
        self._length = len(self._buffer)
        # Places of what is known from the start, by token; what is appended goes into lists.
        self._order = np.argsort(self._buffer, kind="stable")
        self._sorted = self._buffer[self._order]
        self._appended: dict[int, list[int]] = {}

    def append(self, tokens: NDArray[np.int32]) -> None:
        needed = self._length + len(tokens)
        if needed > len(self._buffer):
            self._buffer = np.concatenate([self._buffer, np.empty(needed, np.int32)])
        self._buffer[self._length : needed] = tokens
        for place, token in enumerate(tokens.tolist(), start=self._length):
            self._appended.setdefault(token, []).append(place)
        self._length = needed

    def matches(self, length: int, among: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Earlier places, ascending, whose last `length` tokens equal the context's.

        Args:
            length: at least 1.
            among: places known to match `length - 1` tokens; None: start from all of them.
        """
        if length > self._length - self.private:
            return np.empty(0, np.int64)
        if among is None:
            return self._last_token_places() if length == 1 else self.matches(length, self.matches(length - 1))
        offset = length - 1
        places = among[among >= offset]
        same: NDArray[np.bool_] = self._buffer[places - offset] == self._buffer[self._length - 1 - offset]
        return places[same]

    def _last_token_places(self) -> NDArray[np.int64]:
        """Places of the context's last token, without its last one."""
        last = self._buffer[self._length - 1]
        first, end = np.searchsorted(self._sorted, [last, last + 1])
        appended = np.array(self._appended.get(int(last), ()), np.int64)
        return np.concatenate([self._order[first:end], appended])[:-1]

    def after(self, place: int, count: int) -> NDArray[np.int32]:
        """Up to `count` tokens behind `place`, up to the document's end."""
        following = self._buffer[place + 1 : min(place + 1 + count, self._length)]
        ends = np.flatnonzero(following == _SEPARATOR)
        return following[: ends[0]] if len(ends) else following


def _nothing(_: _Context, __: int) -> tuple[NDArray[np.int32], Source]:
    return np.empty(0, np.int32), Source.REQUEST


def _longest_suffix(context: _Context, count: int) -> tuple[NDArray[np.int32], Source]:
    """What followed the place with the longest matching context; of several, the latest."""
    best = context.matches(1)
    if not len(best):
        return _nothing(context, count)
    for length in range(2, MAX_SUFFIX + 1):
        longer = context.matches(length, best)
        if not len(longer):
            break
        best = longer
    place = int(best[-1])
    return context.after(place, count), Source.REPOSITORY if place < context.private else Source.REQUEST


class _ChainSession(DraftSession):
    def __init__(self, context: _Context, choose: Callable[[_Context, int], tuple[NDArray[np.int32], Source]]) -> None:
        self._context = context
        self._choose = choose
        self._source = Source.REQUEST
        self._receipt = DraftReceipt()

    def propose(self, budget: Budget) -> DraftTree:
        tokens, self._source = self._choose(self._context, min(budget.max_nodes, budget.max_depth))
        self._count(self._receipt.drafted, len(tokens))
        return chain(tokens, self._source)

    def commit(self, tokens: NDArray[np.int32]) -> None:
        self._context.append(tokens)
        self._receipt.steps += 1
        self._count(self._receipt.accepted, len(tokens) - 1)

    def _count(self, counts: dict[Source, int], more: int) -> None:
        if more:
            counts[self._source] = counts.get(self._source, 0) + more

    def receipt(self) -> DraftReceipt:
        return self._receipt


@dataclass(frozen=True, slots=True)
class ChainBaseline(Drafter):
    """A drafter that proposes one chain by a simple rule.

    Attributes:
        choose: the rule, from the context and the number of tokens wanted to a chain and its source.
        reads_repository: whether the repository's documents are part of what the rule searches.
    """

    choose: Callable[[_Context, int], tuple[NDArray[np.int32], Source]]
    reads_repository: bool = False

    def begin(self, request: DraftRequest) -> DraftSession:
        """Start on one request."""
        documents: list[NDArray[np.int32]] = []
        if self.reads_repository and request.repository is not None:
            snapshot = request.repository
            documents = [snapshot.tokens(document) for document in snapshot.documents()]
        return _ChainSession(_Context(documents, request.prompt), self.choose)


BASELINES: dict[str, Drafter] = {
    "none": ChainBaseline(_nothing),
    "suffix": ChainBaseline(_longest_suffix),
    "suffix+repo": ChainBaseline(_longest_suffix, reads_repository=True),
}
"""By the name that `agentspec bench replay` gives them."""
