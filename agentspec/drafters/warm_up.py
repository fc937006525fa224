"""A request that nobody made: a drafter that begins it has loaded what real ones need."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import numpy as np

from agentspec.drafters.base import DraftRequest

if TYPE_CHECKING:
    from agentspec.drafters.base import TextCodec


def warm_up_request(codec: TextCodec, vocab_size: int) -> DraftRequest:
    """An edit of some code, whose last token makes the drafter look at the whole vocabulary.

    Args:
        codec: the target's tokenizer.
        vocab_size: of the target.
    """
    edit = f"Change this file:\n```python\n{inspect.getsource(DraftRequest)}```\n"
    return DraftRequest(np.array([*codec.encode(edit), vocab_size - 1], np.int32), codec=codec)
