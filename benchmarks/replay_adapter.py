"""agentspec's drafter under the replay harness: `replay.py --drafter replay_adapter:Agentspec`.

The repository's documents go through the real index: written, sorted, published and mapped as `agentspec index` does.
Environment:
    AGENTSPEC_REPLAY_TOKENIZER: tokenizer.json of the streams; without it, sources that need text stay silent.
    AGENTSPEC_REPLAY_FOLDS: folder that `fit_weights.py` wrote; each stream is then drafted by the weights that were
        fitted without its repository. Otherwise the shipped weights are used.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from tokenizers import Tokenizer

from agentspec.drafters._native import Ranker
from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.tree_drafter import TreeDrafter, TreeSession
from agentspec.drafters.weights import Weights, read_weights
from agentspec.index.manifest import TokenizerIdentity
from agentspec.index.segment import IndexedDocument
from agentspec.index.store import IndexStore
from agentspec.index.writer import open_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from agentspec.index.snapshot import Snapshot

TOKENIZER_VARIABLE = "AGENTSPEC_REPLAY_TOKENIZER"
FOLDS_VARIABLE = "AGENTSPEC_REPLAY_FOLDS"
FOLDS = 4
FOLDS_FILE = "folds.json"

MAX_NODES = 256
MIN_PATH_PROB = 0.005


class Steady:
    """The same budget at every step: a step over n nodes costs `1 + n / scale` plain steps."""

    def __init__(self, scale: float, max_nodes: int) -> None:
        cost = (1 + np.arange(max_nodes + 1) / scale).astype(np.float32)
        self._budget = Budget(max_nodes=max_nodes, max_depth=256, min_path_prob=MIN_PATH_PROB, cost=cost)

    def budget(self) -> Budget:
        """The budget of the next step."""
        return self._budget

    def committed(self, tokens: int) -> None:
        """A verdict of so many tokens came of it."""


class ByRate:
    """Budgets that value a step by the request's own pace.

    A step over n nodes is said to cost `1 + slope * n` plain steps. The slope rises with the tokens per step of this
    request so far, where they are more than usual: where steps bring forty tokens, there are few of them, and nodes are
    better spent elsewhere.

    Args:
        slopes: the least and the largest.
        power: of the rate that the slope rises with.
        usual_rate: tokens per step from which on it rises.
        first_rate: tokens per step, to begin with.
        weight: steps that the first rate counts for.
    """

    def __init__(
        self, slopes: tuple[float, float], power: float, usual_rate: float, first_rate: float, weight: float
    ) -> None:
        self._slopes = slopes
        self._power = power
        self._usual_rate = usual_rate
        self._tokens = first_rate * weight
        self._steps = weight

    def budget(self) -> Budget:
        """The budget of the next step."""
        least, largest = self._slopes
        rate = max(self._tokens / self._steps / self._usual_rate, 1.0)
        slope = min(least * rate**self._power, largest)
        cost = (1 + slope * np.arange(MAX_NODES + 1)).astype(np.float32)
        return Budget(max_nodes=MAX_NODES, max_depth=256, min_path_prob=MIN_PATH_PROB, cost=cost)

    def committed(self, tokens: int) -> None:
        """A verdict of so many tokens came of it."""
        self._tokens += tokens
        self._steps += 1


class RepositoryDocuments(Protocol):
    """The harness's documents: pairs of path and tokens, with a key that is equal for equal documents."""

    key: tuple[str, ...]

    def __iter__(self) -> Iterator[tuple[str, NDArray[np.int32]]]: ...


class TokenizerCodec:
    """A `tokenizer.json` as a `TextCodec`."""

    def __init__(self, file: str) -> None:
        self._tokenizer = Tokenizer.from_file(file)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens added."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: list[int]) -> str:
        """The text of `tokens`, special tokens included."""
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


@cache
def codec() -> TokenizerCodec | None:
    """The streams' tokenizer, if the environment names it."""
    file = os.environ.get(TOKENIZER_VARIABLE)
    return TokenizerCodec(file) if file else None


@cache
def folds() -> dict[str, int]:
    """Which of the `FOLDS` each edit belongs to, by its key; empty where the environment names no folds."""
    folder = os.environ.get(FOLDS_VARIABLE)
    return json.loads((Path(folder) / FOLDS_FILE).read_text()) if folder else {}


def fold_of(key: str) -> int:
    """The fold of an edit; 0 where there are none.

    Raises:
        KeyError: the folds were made of other edits.
    """
    return folds()[key] if folds() else 0


def fold_weights(fold: int) -> Weights:
    """The weights that were fitted without `fold`, or the shipped ones."""
    folder = os.environ.get(FOLDS_VARIABLE)
    return read_weights(Path(folder) / f"without-{fold}.json" if folder else None)


@cache
def drafter_for(fold: int) -> TreeDrafter:
    """The drafter of these weights."""
    return TreeDrafter(Ranker(fold_weights(fold)))


def build_index(directory: Path, documents: RepositoryDocuments) -> Snapshot:
    """Publish documents as the first generation of a store in `directory`, and open it."""
    indexed, files, largest = [], {}, 0
    for path, tokens in documents:
        blob = hashlib.sha1(tokens.tobytes()).digest()
        indexed.append(IndexedDocument(blob, tokens, np.zeros(len(tokens), np.bool_)))
        files[path.encode()] = blob
        largest = max(largest, int(tokens.max(initial=0)))
    store = IndexStore(directory)
    identity = TokenizerIdentity(name="replay", fingerprint="replay", vocabulary_size=largest + 1)
    with open_writer(store, identity, marks="none") as writer:
        writer.publish(Path("replay"), files, indexed, {})
    return store.current()


class ReplayDrafter:
    """The harness's drafter interface over `TreeDrafter`."""

    def __init__(self, name: str, make_budgets: Callable[[], Steady | ByRate]) -> None:
        self.name = name
        self._make_budgets = make_budgets
        self._budgets = make_budgets()
        self._key: tuple[str, ...] | None = None
        self._snapshot: Snapshot | None = None
        self._session: TreeSession
        self._numbers: dict[str, float] = {}

    def peek(self, output_tokens: NDArray[np.int32]) -> None:
        """The recorded output; not looked at."""

    def start_request(self, prompt_tokens: NDArray[np.int32], repo_docs: RepositoryDocuments, file_path: str) -> None:
        """Begin a session; the index is built anew when the documents are others than last time."""
        self._numbers = {}
        if self._key != repo_docs.key:
            start = time.perf_counter()
            with tempfile.TemporaryDirectory() as directory:  # what is mapped stays readable
                self._snapshot = build_index(Path(directory), repo_docs)
            tokens = sum(segment.size for segment in self._snapshot.segments)
            self._numbers = {"build_s": time.perf_counter() - start, "index_tokens": tokens}
            self._key = repo_docs.key
        request = DraftRequest(prompt_tokens, self._snapshot, file_path, codec=codec())
        self._budgets = self._make_budgets()
        self._session = drafter_for(fold_of(repo_docs.key[0])).begin(request)

    def propose(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """One draft tree."""
        tree = self._session.propose(self._budgets.budget())
        return tree.tokens, tree.parents, tree.prob

    def to_tree(
        self, raw: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]
    ) -> tuple[list[int], list[int], None]:
        """The same tree as lists, off the clock."""
        tokens, parents, _ = raw
        return tokens.tolist(), parents.tolist(), None

    def commit(self, tokens: NDArray[np.int32]) -> None:
        """The verdict."""
        self._session.commit(tokens)
        self._budgets.committed(len(tokens))

    def end_request(self) -> dict[str, float]:
        """Numbers for the result line."""
        return self._numbers


BUDGETS: dict[str, Callable[[], Steady | ByRate]] = {
    "agentspec": lambda: Steady(scale=31, max_nodes=MAX_NODES),
    "agentspec-lean": lambda: ByRate((0.045, 0.058), power=0.45, usual_rate=4, first_rate=4, weight=4),
    "agentspec-wide": lambda: ByRate((0.0036, 0.1), power=1.55, usual_rate=5, first_rate=7, weight=8),
}
"""How each of the settings below spends, by its name."""


def Agentspec() -> ReplayDrafter:  # noqa: N802 - the harness's convention
    """A step over 31 nodes costs twice a plain one."""
    return ReplayDrafter("agentspec", BUDGETS["agentspec"])


def AgentspecLean() -> ReplayDrafter:  # noqa: N802
    """About a dozen nodes a step: for targets whose step time grows with the tree."""
    return ReplayDrafter("agentspec-lean", BUDGETS["agentspec-lean"])


def AgentspecWide() -> ReplayDrafter:  # noqa: N802
    """About fifty nodes a step: for targets whose step time hardly grows."""
    return ReplayDrafter("agentspec-wide", BUDGETS["agentspec-wide"])
