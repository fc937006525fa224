"""From what the user has to token ids that the target reads and continues, chosen once and kept."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from agentspec.engines.base import ChatPrompt
from agentspec.errors import InvalidRequestError
from agentspec.training.documents import documents
from agentspec.training.prompts import chat_prompts, code_prompts
from agentspec.training.sources import PYTHON, TEXT, package_files, permissive_packages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentspec.engines.local.tokenizer import Tokenizer

FILES_PER_PACKAGE = 60
"""Python files taken of one package, so that a few large ones do not drown the rest."""

HELD_OUT_PACKAGES = frozenset({"click", "httpx", "Jinja2", "requests", "rich", "starlette"})
"""Packages that prompts of the held-out part quote, and no prompt of the training part."""

NEVER = frozenset({"agentspec"})
"""This project's own code stays unseen: its benchmarks edit it."""

TEXT_WINDOW = 448
"""Tokens of one training sequence out of a text file."""


@dataclass(frozen=True, slots=True)
class DataPlan:
    """What to train on.

    Attributes:
        packages: prompts about code of the installed packages under permissive licences, and documents made of it.
        chats: JSONL files of conversations.
        texts: files, or folders of files, that are read as they are.
        prompts: prompts about code in the training part.
        documents: raw documents in the training part.
        held_out: sequences of the held-out part, of each sort.
        longest_prompt: of a conversation, in tokens; longer ones are left out.
        longest_document: likewise.
        seed: of every choice.
    """

    packages: bool = True
    chats: tuple[Path, ...] = ()
    texts: tuple[Path, ...] = ()
    prompts: int = 12_000
    documents: int = 6000
    held_out: int = 64
    longest_prompt: int = 300
    longest_document: int = 720
    seed: int = 0


@dataclass(frozen=True, slots=True)
class DataSet:
    """Token ids, chosen.

    Attributes:
        train: prompts that the target answers.
        held_out: prompts that it answers for measuring.
        documents: raw documents that it continues.
        held_out_documents: such documents for measuring.
        texts: sequences that it only reads.
        held_out_texts: such sequences for measuring.
        packages: name and declared licence of every package quoted.
    """

    train: list[list[int]]
    held_out: list[list[int]]
    documents: list[list[int]]
    held_out_documents: list[list[int]]
    texts: list[list[int]]
    held_out_texts: list[list[int]]
    packages: dict[str, str]


def choose_data(plan: DataPlan, tokenizer: Tokenizer, file: Path) -> DataSet:
    """The data of a plan; once chosen, what `file` holds, whatever has been installed or edited since.

    Args:
        plan: what to choose.
        tokenizer: the target's.
        file: JSON that keeps the choice.

    Raises:
        InvalidRequestError: there is nothing to train on, or `file` is damaged.
    """
    if file.exists():
        try:
            return DataSet(**json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise InvalidRequestError(f"{file} is damaged: {error}; delete it to choose the data again") from error
    data = _choose(plan, tokenizer)
    if not (data.train or data.documents or data.texts) or not (
        data.held_out or data.held_out_documents or data.held_out_texts
    ):
        raise InvalidRequestError(
            "there is too little to train on and to measure with: name text files (--text) or conversations (--chat), "
            "or allow installed packages (--packages)"
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(data)), encoding="utf-8")
    partial.replace(file)
    return data


def _choose(plan: DataPlan, tokenizer: Tokenizer) -> DataSet:
    def encoded(prompts: Sequence[ChatPrompt]) -> list[list[int]]:
        tokens = [tokenizer.prompt_tokens(prompt) for prompt in prompts]
        return [ids for ids in tokens if len(ids) <= plan.longest_prompt]

    def about(packages: list[str], count: int, seed: int) -> list[list[int]]:
        prompts = code_prompts(_some_files(packages, PYTHON), count, seed)
        return encoded([ChatPrompt(({"role": "user", "content": prompt},)) for prompt in prompts])

    def raw(packages: list[str], count: int, seed: int) -> list[list[int]]:
        tokens = [tokenizer.encode(text) for text in documents(_some_files(packages, TEXT), count, seed)]
        return [ids for ids in tokens if len(ids) <= plan.longest_document]

    licences: dict[str, str] = {}
    train: list[list[int]] = []
    held_out: list[list[int]] = []
    train_documents: list[list[int]] = []
    held_out_documents: list[list[int]] = []
    if plan.packages:
        licences = {name: licence for name, licence in permissive_packages().items() if name not in NEVER}
        apart = [name for name in licences if name in HELD_OUT_PACKAGES]
        together = [name for name in licences if name not in HELD_OUT_PACKAGES]
        # Prompts that turn out too long are left out afterwards, hence the surplus.
        held_out = about(apart, 2 * plan.held_out + 22, plan.seed + 1)[: plan.held_out]
        train = about(together, plan.prompts, plan.seed)
        held_out_documents = raw(apart, 2 * plan.held_out, plan.seed + 1)[: plan.held_out]
        train_documents = raw(together, plan.documents, plan.seed)
    chats = encoded([prompt for file in plan.chats for prompt in chat_prompts(file)])
    texts = [window for path in plan.texts for window in _windows(path, tokenizer)]
    chats, held_out_chats = _split(chats, plan)
    texts, held_out_texts = _split(texts, plan)
    return DataSet(
        train=train + chats,
        held_out=held_out + held_out_chats,
        documents=train_documents,
        held_out_documents=held_out_documents,
        texts=texts,
        held_out_texts=held_out_texts,
        packages=licences,
    )


def _some_files(packages: list[str], suffixes: frozenset[str]) -> list[Path]:
    chosen = []
    for name in packages:
        files = list(package_files([name], suffixes=suffixes))
        random.Random(0).shuffle(files)
        chosen += files[:FILES_PER_PACKAGE]
    return chosen


def _windows(path: Path, tokenizer: Tokenizer) -> list[list[int]]:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    windows = []
    for file in files:
        try:
            tokens = tokenizer.encode(file.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # not a text file
        except OSError as error:
            raise InvalidRequestError(f"{file} cannot be read: {error}", "text") from error
        parts = [tokens[start : start + TEXT_WINDOW] for start in range(0, len(tokens), TEXT_WINDOW)]
        windows += [part for part in parts if len(part) > 8]
    return windows


def _split(sequences: list[list[int]], plan: DataPlan) -> tuple[list[list[int]], list[list[int]]]:
    """Training and held-out part: a tenth is held out, but no more than the plan's number."""
    order = list(range(len(sequences)))
    random.Random(plan.seed).shuffle(order)
    count = min(plan.held_out, len(order) // 10)
    return [sequences[at] for at in order[count:]], [sequences[at] for at in order[:count]]
