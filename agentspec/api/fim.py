"""Fill-in-the-middle: how each model family wants prefix and suffix written, found by the tokenizer's own markers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentspec.engines.base import Engine


@dataclass(frozen=True, slots=True)
class FimFamily:
    """Markers of one family of models.

    Attributes:
        name: the family.
        prefix: stands before the text left of the cursor.
        suffix: stands before the text right of it.
        middle: stands where the completion begins; empty where the prompt just ends.
        suffix_first: whether the suffix precedes the prefix.
        file: stands before a file's path in prompts with several files, where the family knows such prompts.
        ends: further tokens that end a completion.
    """

    name: str
    prefix: str
    suffix: str
    middle: str
    suffix_first: bool = False
    file: str = ""
    ends: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The markers without which a prompt cannot be written."""
        return tuple(marker for marker in (self.prefix, self.suffix, self.middle) if marker)


_PIPED = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_PLAIN = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
_ENDS = ("<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<fim_pad>", "<|repo_name|>", "<repo_name>", "<|im_start|>")

FAMILIES = (
    FimFamily("qwen", *_PIPED, file="<|file_sep|>", ends=_ENDS),
    FimFamily("codegemma", *_PIPED, file="<|file_separator|>", ends=("<eos>",)),
    FimFamily("granite", *_PIPED, ends=_ENDS),
    FimFamily("starcoder", *_PLAIN, file="<file_sep>", ends=_ENDS),
    FimFamily("granite-3", *_PLAIN, ends=_ENDS),
    FimFamily("deepseek", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ends=("<｜end▁of▁sentence｜>",)),  # noqa: RUF001
    FimFamily("codestral", "[PREFIX]", "[SUFFIX]", "", suffix_first=True),
    FimFamily("codellama", "▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),
)
"""Known families, those with more markers before those with a part of them."""


@dataclass(frozen=True, slots=True)
class ContextFile:
    """Another file that the completion may draw on.

    Attributes:
        path: its name.
        text: its content.
    """

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class FimTemplate:
    """A family's way of writing prompts, for the tokenizer of the served model.

    Attributes:
        family: the family.
        end_tokens: tokens that end a completion: the family's markers must never leak into it.
    """

    family: FimFamily
    end_tokens: tuple[int, ...]

    def carries(self, prompt: str) -> bool:
        """Whether `prompt` is written in this template already."""
        first = self.family.suffix if self.family.suffix_first else self.family.prefix
        last = self.family.prefix if self.family.suffix_first else self.family.middle
        begins = prompt.lstrip().startswith((first, self.family.file or first))
        return begins and last in prompt and self.family.suffix in prompt

    def prompt(self, prefix: str, suffix: str, files: Sequence[ContextFile] = (), path: str = "") -> str:
        """The prompt whose continuation belongs between `prefix` and `suffix`.

        Args:
            prefix: text left of the cursor.
            suffix: text right of it.
            files: other files, the least relevant first; without a marker for files they precede the prefix as text.
            path: name of the edited file.
        """
        family = self.family
        left, right = family.prefix + prefix, family.suffix + suffix
        context = "".join(f"{family.file}{file.path}\n{file.text}\n" for file in files) if family.file else ""
        if files and not family.file:
            left = family.prefix + "".join(f"{file.text}\n" for file in files) + prefix
        if context:
            context += f"{family.file}{path}\n"
        return context + (right + left if family.suffix_first else left + right) + family.middle


class FimDetector:
    """Finds the template of the served model, once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()
        self._found: FimTemplate | None = None
        self._searched = False

    async def find(self) -> FimTemplate | None:
        """The served model's template, or None when it has none that is known."""
        async with self._lock:
            if not self._searched:
                self._found = await self._search()
                self._searched = True
        return self._found

    async def template(self) -> FimTemplate:
        """The served model's template.

        Raises:
            InvalidRequestError: it has none that is known.
        """
        found = await self.find()
        if found is None:
            raise InvalidRequestError(
                f"the model '{self._engine.model.id}' has no known fill-in-the-middle template; send a prompt without "
                "a suffix, or serve a model trained for it (Qwen coder, StarCoder, DeepSeek coder, Codestral, ...)",
                "suffix",
            )
        return found

    async def _search(self) -> FimTemplate | None:
        for family in FAMILIES:
            needed = [*family.markers, *([family.file] if family.file else [])]
            tokens = [await self._token(marker) for marker in needed]
            if None not in tokens:
                ends = [await self._token(end) for end in family.ends]
                return FimTemplate(family, tuple(token for token in (*tokens, *ends) if token is not None))
        return None

    async def _token(self, text: str) -> int | None:
        """The id of `text` when it is one special token: then, and only then, writing it twice takes one token more."""
        once = await self._engine.tokenize(text)
        twice = await self._engine.tokenize(text * 2)
        single = len(twice) == len(once) + 1 and once[-1] == twice[-1] == twice[-2]
        return once[-1] if single else None
