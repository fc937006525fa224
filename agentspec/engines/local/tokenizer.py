"""The target's tokenizer: text and chat messages to token ids and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from jinja2 import TemplateError
from transformers import AutoTokenizer

from agentspec.engines.base import ChatPrompt
from agentspec.engines.local.answers.parser import THINK_END
from agentspec.engines.local.chat_format import ChatFormat
from agentspec.errors import InvalidRequestError, ModelError
from agentspec.index.tokenizer import tokenizer_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from transformers import PreTrainedTokenizerBase


class Tokenizer:
    """Wraps a fast tokenizer of `transformers`. Safe to use from several threads.

    Text goes through the Rust tokenizer directly: the wrapper around it changes its truncation settings on every
    call, which fails when two threads do so at once.

    Args:
        wrapped: a fast tokenizer.

    Attributes:
        wrapped: the tokenizer itself.
        chat: how the model's conversations are written.

    Raises:
        ModelError: it is not a fast one.
    """

    def __init__(self, wrapped: PreTrainedTokenizerBase) -> None:
        if not wrapped.is_fast:
            raise ModelError(
                f"the tokenizer of {wrapped.name_or_path} has no tokenizer.json; convert it to a fast tokenizer first"
            )
        self.wrapped = wrapped
        self._backend = wrapped.backend_tokenizer
        self._fingerprint = tokenizer_fingerprint(self._backend)
        self._special = {
            token: added.content for token, added in self._backend.get_added_tokens_decoder().items() if added.special
        }
        self.chat = ChatFormat(_template(wrapped))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the tokenizer of a model folder.

        Raises:
            ModelError: there is none, or it cannot be read.
        """
        try:
            return cls(AutoTokenizer.from_pretrained(folder))
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"the tokenizer in {folder} cannot be read: {error}") from error

    @property
    def fingerprint(self) -> str:
        """Identity of the tokenizer, as repository indexes carry it."""
        return self._fingerprint

    @property
    def vocab_size(self) -> int:
        """Number of ids that decode to something, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @property
    def special_tokens(self) -> frozenset[str]:
        """Texts of the tokens that readers do not see."""
        return frozenset(self._special.values())

    def prompt_tokens(self, prompt: str | ChatPrompt) -> list[int]:
        """Token ids of a prompt as the target expects it.

        Raw text gets the special tokens that the tokenizer adds by itself; a chat template writes its own.

        Raises:
            InvalidRequestError: the text is not valid Unicode, or the chat template refuses the messages.
        """
        if isinstance(prompt, ChatPrompt):
            return self._encode(self.render(prompt), special=False)
        return self._encode(prompt, special=True)

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens added."""
        return self._encode(text, special=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of `tokens`, special tokens included."""
        return str(self._backend.decode(tokens, skip_special_tokens=False))

    def visible_text(self, tokens: Sequence[int]) -> str:
        """Text of `tokens` as a reader sees it: without special tokens."""
        return str(self._backend.decode(tokens, skip_special_tokens=True))

    def visible_with(self, marks: Iterable[str]) -> Callable[[Sequence[int]], str]:
        """A decoder that leaves out special tokens, but for these."""
        hidden = {token for token, text in self._special.items() if text not in frozenset(marks)}
        return lambda tokens: self.decode([token for token in tokens if token not in hidden])

    def _encode(self, text: str, *, special: bool) -> list[int]:
        try:
            return list(self._backend.encode(text, add_special_tokens=special).ids)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequestError(f"the text is not valid Unicode: {error}", "prompt") from error

    def render(self, prompt: ChatPrompt) -> str:
        """Text of a conversation, up to where the answer goes on.

        Raises:
            InvalidRequestError: the chat template refuses the messages.
        """
        try:
            rendered = self.wrapped.apply_chat_template(
                self.chat.messages(prompt),
                tools=self.chat.offered(prompt),
                add_generation_prompt=True,
                tokenize=False,
                **prompt.template_kwargs,
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            raise InvalidRequestError(f"the chat template refuses these messages: {error}", "messages") from error
        if prompt.answer_prefix and self.chat.is_reasoning(rendered):
            rendered = f"{rendered.rstrip()}\n\n{THINK_END}\n\n"
        return f"{rendered}{prompt.answer_prefix}"


def _template(wrapped: PreTrainedTokenizerBase) -> str:
    """The chat template, the one for tools where there are several; empty where there is none."""
    template = wrapped.chat_template or ""
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default") or ""
    return str(template)
