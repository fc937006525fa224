"""Grammars: which tokens may come next when the form of an answer is prescribed.

xgrammar compiles a grammar for the tokenizer and follows the emitted tokens. A verify step draws along one path of the
draft tree (see `agentspec.kernels.acceptance`), so the matcher is always at the node that is drawn from, and what is
emitted is what plain decoding would emit.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import xgrammar

from agentspec.errors import EngineError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from transformers import PreTrainedTokenizerBase
    from xgrammar.structural_tag import StructuralTag

CACHE_BYTES = 64 * 2**20
"""Memory for compiled grammars, so that a schema sent with every request is compiled once."""

COMPILE_THREADS = 4

_SOURCE_PLACE = re.compile(r"^\[[^]]*\] \S+:\d+: ")
"""Begins xgrammar's messages: the time, and a place in its source."""


class GrammarProcessor:
    """Excludes the tokens that the grammar does not allow; a `agentspec.kernels.processors.LogitsProcessor`.

    Args:
        grammar: compiled for the target's tokenizer.
        vocab_size: length of the logits.
    """

    follows_path = True

    def __init__(self, grammar: xgrammar.CompiledGrammar, vocab_size: int) -> None:
        self._matcher = xgrammar.GrammarMatcher(grammar)
        self._mask = xgrammar.allocate_token_bitmask(1, vocab_size)

    def apply(self, logits: torch.Tensor) -> None:
        """Set the logits of excluded tokens to minus infinity."""
        if self._matcher.fill_next_token_bitmask(self._mask):
            xgrammar.apply_token_bitmask_inplace(logits[None], self._mask, backend="cpu")

    def advance(self, token: int) -> None:
        """Follow the emitted token.

        Raises:
            EngineError: the grammar does not allow it.
        """
        if not self._matcher.accept_token(token):
            raise EngineError(f"token {token} was drawn although the grammar of this request excludes it")


class Grammars:
    """Compiles grammars for one tokenizer. Safe to use from several threads.

    Args:
        tokenizer: of the target.
        vocab_size: of the target, which may be larger than the tokenizer's.
        end_tokens: tokens that end an answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, end_tokens: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._end_tokens = sorted(end_tokens)
        self._lock = threading.Lock()
        self._compiler: xgrammar.GrammarCompiler | None = None

    def compile(self, tag: StructuralTag) -> xgrammar.CompiledGrammar:
        """Compile a grammar, or take it from the cache.

        Raises:
            InvalidRequestError: it is broken, or uses something that cannot be compiled.
        """
        with self._lock:
            if self._compiler is None:
                info = xgrammar.TokenizerInfo.from_huggingface(
                    self._tokenizer, vocab_size=self._vocab_size, stop_token_ids=self._end_tokens
                )
                self._compiler = xgrammar.GrammarCompiler(
                    info, max_threads=COMPILE_THREADS, cache_limit_bytes=CACHE_BYTES
                )
            try:
                return self._compiler.compile_structural_tag(tag)
            except (RuntimeError, ValueError, TypeError) as error:
                reason = _SOURCE_PLACE.sub("", str(error).strip().splitlines()[-1])
                raise InvalidRequestError(f"the grammar cannot be compiled: {reason}", "response_format") from error

    def processor(self, grammar: xgrammar.CompiledGrammar) -> GrammarProcessor:
        """A processor for one choice."""
        return GrammarProcessor(grammar, self._vocab_size)
