from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from agentspec.drafters.base import DraftRequest
from agentspec.drafters.escaped_view import EscapedSpelling, cuts_hold
from agentspec.drafters.token_classes import TokenTable, TokenTrait, token_traits
from agentspec.drafters.tree_drafter import TreeDrafter
from agentspec.drafters.views import escaped
from tests.index.making import document, publish

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "agentspec" / "drafters").glob("*.py"))


class CountingCodec:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.decoded = 0
        self.encoded = 0

    def encode(self, text: str) -> list[int]:
        self.encoded += len(text)
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: list[int]) -> str:
        self.decoded += len(tokens)
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


def trained(pre_tokenizer: object, decoder: object) -> CountingCodec:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer  # type: ignore[assignment]
    tokenizer.decoder = decoder  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(file) for file in SOURCES], trainer)
    return CountingCodec(tokenizer)


@pytest.fixture(scope="module")
def codec() -> CountingCodec:
    return trained(pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())


def spell(codec: CountingCodec, text: str) -> list[int]:
    spelling = EscapedSpelling(codec, TokenTable(codec), by_pieces=True)
    return spelling.spell(np.array(codec.encode(text), np.int32)).tolist()


@pytest.mark.parametrize("file", [*SOURCES, *sorted((ROOT / "docs").glob("*.md"))], ids=lambda file: file.name)
def test_pieces_make_the_tokens_of_the_whole(codec: CountingCodec, file: Path) -> None:
    text = file.read_text()
    assert spell(codec, text) == codec.encode(escaped(text))


@settings(deadline=None)
@given(st.text(st.sampled_from("ab1 _.\n\t\"\\'({é日")))
def test_pieces_make_the_text_of_the_whole(text: str) -> None:
    codec = trained_once()
    assert codec.decode(spell(codec, text)) == escaped(text)


def trained_once(_kept: list[CountingCodec] = []) -> CountingCodec:  # noqa: B006 - kept on purpose
    if not _kept:
        _kept.append(trained(pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()))
    return _kept[0]


def test_a_file_seen_again_is_hardly_tokenised(codec: CountingCodec) -> None:
    spelling = EscapedSpelling(codec, TokenTable(codec), by_pieces=True)
    text = SOURCES[0].read_text() + SOURCES[1].read_text()
    tokens = np.array(codec.encode(text), np.int32)
    spelling.spell(tokens)
    before = codec.encoded
    spelling.spell(tokens)
    assert codec.encoded == before


def test_where_pieces_get_a_prefix_the_whole_is_tokenised() -> None:
    codec = trained(pre_tokenizers.Metaspace(prepend_scheme="always"), decoders.Metaspace())
    codec._tokenizer.normalizer = normalizers.Sequence([])
    table = TokenTable(codec)
    assert not cuts_hold(codec, table)
    tokens = np.array(codec.encode(' a\n    b("c")'), np.int32)
    spelled = EscapedSpelling(codec, table, by_pieces=False).spell(tokens)
    assert spelled.tolist() == codec.encode(escaped(codec.decode(tokens.tolist())))


def test_byte_level_pieces_hold(codec: CountingCodec) -> None:
    assert cuts_hold(codec, TokenTable(codec))


@pytest.mark.parametrize(
    ("text", "traits"),
    [
        ("", 0),
        ("foo", TokenTrait.STARTS_WORD | TokenTrait.ENDS_PIECE),
        (" foo(", TokenTrait.STARTS_SPACED_WORD),
        (" (", 0),
        (")\n", TokenTrait.ENDS_PIECE | TokenTrait.ESCAPED),
        ('"', TokenTrait.ENDS_QUOTED | TokenTrait.ESCAPED),
        ("a\\", TokenTrait.STARTS_WORD | TokenTrait.ESCAPED),
        ("\x01_", TokenTrait.ESCAPED),
    ],
)
def test_traits(text: str, traits: int) -> None:
    assert token_traits(text) == traits


def test_each_token_is_looked_at_once(codec: CountingCodec) -> None:
    table = TokenTable(codec)
    assert table.cover(700)
    before = codec.decoded
    assert not table.cover(500)
    assert table.cover(800)
    assert codec.decoded - before == 100
    assert len(table.classes) == len(table.traits) == 800


def test_a_prompt_that_shows_the_file_waits_for_the_call_before_it_is_spelled_anew(
    codec: CountingCodec, tmp_path: Path
) -> None:
    text = "".join(f'    call{n}("argument {n}", other)\n' for n in range(60))
    snapshot = publish(tmp_path, {"a.py": document(codec.encode(text))})
    drafter = TreeDrafter()
    prompt = np.array(codec.encode(f"a.py\n{text}"), np.int32)
    drafter.begin(DraftRequest(prompt, snapshot, "a.py", codec=codec))
    session = drafter.begin(DraftRequest(prompt, snapshot, "a.py", codec=codec))
    for before, opened in (('{"other":', False), (' 1, "old_string":', True), (' "', False)):
        spelled = codec.encoded
        tokens = np.array(codec._tokenizer.encode(before).ids, np.int32)
        session.commit(tokens)
        assert (codec.encoded > spelled) == opened


def test_a_path_seen_again_costs_no_tokenising(codec: CountingCodec, tmp_path: Path) -> None:
    snapshot = publish(tmp_path, {"a.py": document(codec.encode("x = 1\n" * 30))})
    drafter = TreeDrafter()
    request = DraftRequest(np.array(codec.encode("Change it."), np.int32), snapshot, "a.py", codec=codec)
    drafter.begin(request)
    before = codec.encoded
    drafter.begin(request)
    assert codec.encoded == before
