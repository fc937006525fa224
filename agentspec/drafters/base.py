"""What a drafter is: the contract between engines and everything that proposes tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from agentspec.drafters.tree import DraftTree, Source
    from agentspec.index.snapshot import Snapshot


class TextCodec(Protocol):
    """The model's tokenizer, as far as drafting needs it (edit formats, escaped views)."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens added."""

    def decode(self, tokens: list[int]) -> str:
        """The text of `tokens`, special tokens included."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """All that a drafter may know of one generation before its first token.

    Attributes:
        prompt: `int32[P]`, the prompt as the target sees it.
        repository: generation of the repository index that this request named, or None.
        edited_path: path inside the repository of the file being edited, where the client said so.
        prediction: `int32[M]`, the client's predicted output, or None.
        codec: the target's tokenizer; without it, sources that need text stay silent.
    """

    prompt: NDArray[np.int32]
    repository: Snapshot | None = None
    edited_path: str | None = None
    prediction: NDArray[np.int32] | None = None
    codec: TextCodec | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """How much the next draft tree may cost.

    Attributes:
        max_nodes: hard cap on drafted nodes.
        max_depth: hard cap on the depth of the tree.
        min_path_prob: nodes whose estimated path probability is lower are never drafted.
        cost: `float32[K]`, `cost[n]` = seconds of one verify step over `n` drafted nodes plus the last committed
            token; the tree is cut where more nodes would cost more seconds than they are expected to save. None: only
            the other bounds apply.
    """

    max_nodes: int = 64
    max_depth: int = 256
    min_path_prob: float = 0.02
    cost: NDArray[np.float32] | None = None


@dataclass(slots=True)
class DraftReceipt:
    """True counts of what drafting did for one request.

    Attributes:
        steps: verify steps (commits), plain decoding steps included.
        drafted: nodes proposed, by source.
        accepted: nodes accepted, by source.
        propose_seconds: time spent in `propose` and `commit`.
    """

    steps: int = 0
    drafted: dict[Source, int] = field(default_factory=dict)
    accepted: dict[Source, int] = field(default_factory=dict)
    propose_seconds: float = 0.0


class DraftSession(Protocol):
    """Drafting state of one request (one choice of it, when n > 1). Not thread-safe."""

    def propose(self, budget: Budget) -> DraftTree:
        """The draft tree after everything committed so far; empty when there is nothing worth verifying."""

    def commit(self, tokens: NDArray[np.int32]) -> None:
        """Append the target's verdict: `int32[A + 1]`, accepted tokens and the bonus token."""

    def receipt(self) -> DraftReceipt:
        """Counts so far."""


class Drafter(Protocol):
    """Makes sessions. Shares nothing between requests except read-only indexes that they name themselves."""

    def begin(self, request: DraftRequest) -> DraftSession:
        """Start drafting for one request."""


@runtime_checkable
class StreamSession(DraftSession, Protocol):
    """A session that reads the target's residual streams."""

    def read(self, start: int, streams: Tensor) -> None:
        """Take in what the target computed for committed tokens.

        Called in ascending order of positions, before the next `propose`; positions may be left out (a prefix whose
        keys and values were reused), which costs acceptance but nothing else.

        Args:
            start: position of the first of these tokens in the text, prompt included.
            streams: `[q, len(capture) * hidden]`, the captured streams at them.
        """


@runtime_checkable
class StreamDrafter(Protocol):
    """A drafter whose sessions read the target's residual streams.

    Attributes:
        capture: layers of the target whose incoming stream the sessions read, ascending.
    """

    capture: tuple[int, ...]

    def begin(self, request: DraftRequest) -> StreamSession:
        """Start drafting for one request."""
