"""The target's tokenizer inside the worker, as drafting needs it."""

from __future__ import annotations

import logging
from typing import Any

from agentspec.index.tokenizer import tokenizer_fingerprint

logger = logging.getLogger(__name__)


class TargetTokenizer:
    """A `transformers` tokenizer as a `TextCodec`, with the identity that indexes are checked against.

    Args:
        tokenizer: a fast tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.fingerprint = tokenizer_fingerprint(tokenizer.backend_tokenizer)

    @classmethod
    def of(cls, tokenizer: Any) -> TargetTokenizer | None:
        """The codec of a tokenizer; None when there is none or it is not a fast one, which leaves no index usable."""
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            logger.warning("agentspec: the target has no fast tokenizer; repositories are not used")
            return None
        return cls(tokenizer)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def decode(self, tokens: list[int]) -> str:
        """The text of `tokens`, special tokens included."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text
