"""The model-free drafter: one tree from the request, the repository, the prediction and the edited file."""

from __future__ import annotations

import time
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from agentspec.drafters import _native
from agentspec.drafters.base import DraftReceipt
from agentspec.drafters.edit_material import EditLibrary
from agentspec.drafters.tree import DraftTree, Source
from agentspec.drafters.weights import shipped_fusion, shipped_ranker
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentspec.drafters.base import Budget, DraftRequest
    from agentspec.drafters.edit_material import EditMaterial


class Origin(IntEnum):
    """Where a candidate's text comes from; values of `native/candidate.hpp`."""

    PROMPT = 0
    OUTPUT = 1
    REPOSITORY = 2
    EDITED = 3
    VIEW = 4
    PREDICTION = 5
    FORMAT = 6
    PROSE = 7


UNKNOWN = -1
"""A position that is not known."""


class TreeSession:
    """Drafting state of one request, see `agentspec.drafters.base.DraftSession`. Not thread-safe.

    Args:
        ranker: learnt weights.
        fusion: likewise, of what another drafter says.
        request: what is known before the first token.
        material: what the edit formats make of the request; None without a tokenizer.
    """

    def __init__(
        self,
        ranker: _native.Ranker,
        fusion: _native.FusionWeights,
        request: DraftRequest,
        material: EditMaterial | None,
    ) -> None:
        self._seconds = 0.0
        self._native = _native.Session(ranker, fusion, _tokens(request.prompt, "prompt"))
        if request.prediction is not None and len(request.prediction):
            prediction = _native.IndexedText(_tokens(request.prediction, "prediction"))
            self._native.start_draft(self._native.add_text(prediction, Origin.PREDICTION), 0)
        edited = self._add_repository(request) if request.repository is not None else None
        self._material = material
        self._awaits_views = False
        if material is not None:
            self._add_formats(material, edited)

    def propose(self, budget: Budget, extra: DraftTree | None = None) -> DraftTree:
        """The draft tree after everything committed so far; empty when there is nothing worth verifying.

        Args:
            budget: bounds of the tree.
            extra: another drafter's tree (EAGLE-3's) at the same place, with that drafter's own probabilities. Where
                it has looked after a node, both drafters' evidence on every token is weighed together; candidates
                extend its nodes.

        Raises:
            InvalidRequestError: an array of the budget has the wrong type.
            DraftTreeError: `extra` is not a valid tree.
        """
        start = time.perf_counter()
        cost = budget.cost
        if cost is not None and (cost.dtype != np.float32 or cost.ndim != 1 or not len(cost)):
            raise InvalidRequestError(f"budget.cost is {cost.dtype}{list(cost.shape)}; expected float32[K] with K > 0")
        if extra is None:
            arrays = self._native.propose(budget.max_nodes, budget.max_depth, budget.min_path_prob, cost)
        else:
            extra.validate(max(len(extra), 1), max(len(extra), 1))
            arrays = self._native.propose(
                budget.max_nodes,
                budget.max_depth,
                budget.min_path_prob,
                cost,
                extra.tokens,
                extra.parents,
                extra.prob,
                extra.source,
            )
        tree = DraftTree(*arrays)
        self._seconds += time.perf_counter() - start
        return tree

    def commit(self, tokens: NDArray[np.int32]) -> None:
        """Append the target's verdict: `int32[A + 1]`, accepted tokens and the bonus token.

        Raises:
            InvalidRequestError: not a one-dimensional int32 array of tokens >= 0.
        """
        start = time.perf_counter()
        tokens = _tokens(tokens, "verdict")
        opens_hunk = self._native.commit(tokens)
        if self._awaits_views and self._shows_views():
            self._add_views()
        if opens_hunk:
            self._add_patch_views()
        self._seconds += time.perf_counter() - start

    def observe(self, output: NDArray[np.int32], max_depth: int) -> dict[str, NDArray[Any]]:
        """What the ranker sees along the true continuation `output`, as far as candidates hold it; for fitting.

        Returns:
            `candidate_node`, `candidates`, `longest`, `features`, `hits` and `depths`, as `Observations` in
            `native/tree_builder.hpp` describes them, flat.
        """
        return self._native.observe(output, max_depth)

    def receipt(self) -> DraftReceipt:
        """Counts so far."""
        steps, drafted, accepted = self._native.counts()
        return DraftReceipt(
            steps=steps,
            drafted={source: int(drafted[source]) for source in Source if drafted[source]},
            accepted={source: int(accepted[source]) for source in Source if accepted[source]},
            propose_seconds=self._seconds,
        )

    def _add_repository(self, request: DraftRequest) -> tuple[int, int] | None:
        """Add all segments; returns text number and start of the edited file, if it is among them."""
        repository = request.repository
        assert repository is not None
        texts = [
            self._native.add_segment(segment, live)
            for segment, live in zip(repository.segments, repository.live, strict=True)
        ]
        edited = repository.document(request.edited_path) if request.edited_path else None
        if edited is None:
            return None
        self._native.set_edited(texts[edited.segment], edited.start, edited.start + edited.length)
        return texts[edited.segment], edited.start

    def _add_formats(self, material: EditMaterial, edited: tuple[int, int] | None) -> None:
        words = material.words()
        words_text = self._native.add_text(words.text, Origin.FORMAT)
        for pair, close in zip(material.formats.pairs, words.closes, strict=True):
            place = UNKNOWN if close is None else close
            self._native.add_pair(pair.open, pair.echo, pair.boundary, pair.close, words_text, place)
        self._native.add_text(material.vocabulary.prose, Origin.PROSE)
        self._native.set_token_classes(material.vocabulary.classes(material.vocabulary_size()))
        if edited is not None and words.fence is not None:
            self._native.add_marker(words.fence, *edited)
        self._native.await_tokens(material.formats.hunk_tokens)
        if material.shown_raw():
            self._awaits_views = True
        else:
            self._add_views()

    def _shows_views(self) -> bool:
        """Whether the output has opened an edit whose text the views may hold."""
        assert self._material is not None
        pair = self._native.latest_pair()
        return pair != UNKNOWN and (self._material.formats.pairs[pair].escaped or not self._material.is_indexed)

    def _add_patch_views(self) -> None:
        assert self._material is not None
        self._native.await_tokens(np.empty(0, np.int32))
        for view in self._material.patch_views():
            self._native.add_text(view, Origin.VIEW)

    def _add_views(self) -> None:
        assert self._material is not None
        self._awaits_views = False
        for view in self._material.views():
            self._native.add_text(view, Origin.VIEW)


class TreeDrafter:
    """Makes `TreeSession`s, see `agentspec.drafters.base.Drafter`.

    Args:
        ranker: learnt weights; None: the shipped ones.
        fusion: likewise, of what another drafter says.
    """

    def __init__(self, ranker: _native.Ranker | None = None, fusion: _native.FusionWeights | None = None) -> None:
        self._ranker = shipped_ranker() if ranker is None else ranker
        self._fusion = shipped_fusion() if fusion is None else fusion
        self._library = EditLibrary()

    def begin(self, request: DraftRequest) -> TreeSession:
        """Start drafting for one request.

        Raises:
            InvalidRequestError: prompt or prediction is not a one-dimensional int32 array of tokens >= 0.
        """
        return TreeSession(self._ranker, self._fusion, request, self._library.material(request))


def _tokens(tokens: NDArray[np.int32], name: str) -> NDArray[np.int32]:
    if not isinstance(tokens, np.ndarray) or tokens.dtype != np.int32 or tokens.ndim != 1:
        kind = f"{tokens.dtype}{list(tokens.shape)}" if isinstance(tokens, np.ndarray) else type(tokens).__name__
        raise InvalidRequestError(f"{name} is {kind}; drafting expects an int32 array of one dimension")
    return np.ascontiguousarray(tokens)
