from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from agentspec.drafters.base import Budget, DraftRequest
from agentspec.drafters.formats import FormatTokens, Marker, find_tokens, format_pieces
from agentspec.drafters.token_classes import TokenClass, token_class
from agentspec.drafters.tree import Source
from agentspec.drafters.tree_drafter import TreeDrafter, TreeSession
from agentspec.drafters.views import escaped, without_line_numbers
from tests.index.making import document, publish

ROOT = Path(__file__).parents[2]
PATH = "src/server.py"
CODE = """import json

def load(path):
    with open(path) as file:
        return json.load(file)


def save(path, value):
    with open(path, "w") as file:
        json.dump(value, file)
"""


class Codec:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


@pytest.fixture(scope="module")
def codec() -> Codec:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(file) for file in sorted((ROOT / "agentspec" / "drafters").glob("*.py"))], trainer)
    return Codec(tokenizer)


def begin(codec: Codec, prompt: str, directory: Path | None, edited: str = PATH) -> TreeSession:
    snapshot = publish(directory, {PATH: document(codec.encode(CODE))}) if directory else None
    tokens = np.array(codec.encode(prompt), np.int32)
    return TreeDrafter().begin(DraftRequest(tokens, snapshot, edited, codec=codec))


def say(session: TreeSession, codec: Codec, text: str) -> None:
    """Commit a text token by token, as plain decoding would."""
    for token in codec.encode(text):
        session.propose(Budget(min_path_prob=0.05))
        session.commit(np.array([token], np.int32))


def drafts(session: TreeSession, codec: Codec, beginning: str) -> bool:
    """Whether some path of the next tree begins like this text."""
    tree = session.propose(Budget(max_nodes=512, min_path_prob=0.0005))
    texts: list[list[int]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        texts.append([*(texts[parent] if parent >= 0 else []), token])
    return any(codec.decode(path).startswith(beginning) for path in texts)


def test_the_replacement_begins_like_what_was_searched(codec: Codec) -> None:
    session = begin(codec, "Rename load.", None)
    say(session, codec, f"{PATH}\n```\n<<<<<<< SEARCH\nalpha beta gamma delta\nepsilon\n=======\n")
    assert drafts(session, codec, "alpha beta gamma delta\nepsilon\n")


def test_the_replacement_is_closed_where_the_searched_text_ended(codec: Codec) -> None:
    session = begin(codec, "Rename load.", None)
    say(session, codec, f"{PATH}\n```\n<<<<<<< SEARCH\nalpha beta gamma delta\nepsilon\n=======\nalpha beta gamma ")
    say(session, codec, "delta\nepsilon\n")
    assert drafts(session, codec, ">>>>>>> REPLACE")


@pytest.mark.parametrize(
    ("opening", "dividing"),
    [
        ('{"name": "edit_file", "arguments": {"path": "a", "old_string":', '", "new_string":'),
        ('{"path": "a", "old_str":', '", "new_str":'),
    ],
)
def test_a_json_argument_begins_like_the_one_it_replaces(codec: Codec, opening: str, dividing: str) -> None:
    session = begin(codec, "Rename load.", None)
    say(session, codec, f'{opening} "alpha beta gamma delta\\n{dividing}')
    assert drafts(session, codec, ' "alpha beta gamma')


def test_a_tagged_parameter_begins_like_the_one_it_replaces(codec: Codec) -> None:
    session = begin(codec, "Rename load.", None)
    say(session, codec, "<parameter=old_string>\nalpha beta gamma\n</parameter>\n<parameter=new_string>\n")
    assert drafts(session, codec, "alpha beta gamma")


def test_escaped_code_is_drafted_from_the_edited_file(codec: Codec, tmp_path: Path) -> None:
    session = begin(codec, "Change how files are saved.", tmp_path)
    inside = json.dumps(CODE)[1:-1]
    middle = inside.index("(path, \\")
    say(session, codec, '{"path": "a", "old_string": "' + inside[middle - 30 : middle])
    tree = session.propose(Budget(min_path_prob=0.01))
    assert Source.EDIT in tree.source
    assert drafts(session, codec, '(path, \\"w\\") as file:\\n')


def test_numbered_lines_are_drafted_without_their_numbers(codec: Codec) -> None:
    numbered = "".join(f"{n + 1:6d}\t{line}\n" for n, line in enumerate(CODE.splitlines()))
    session = begin(codec, f"Change this.\n{numbered}\n", None, edited="elsewhere.py")
    say(session, codec, '"old_string": "def load(path):\\n    with open')
    assert drafts(session, codec, "(path) as file:\\n        return json")


def test_the_file_is_drafted_after_its_path_and_fence(codec: Codec, tmp_path: Path) -> None:
    session = begin(codec, "Rewrite it.", tmp_path)
    say(session, codec, f"{PATH}\n```\n")
    assert drafts(session, codec, "import json\n\ndef load(path):")


@pytest.mark.parametrize(
    "opening", [f"--- a/{PATH}\n+++ b/{PATH}\n@@ -8,3 +8,3 @@\n", f"*** Update File: {PATH}\n@@\n"]
)
def test_lines_of_a_patch_are_drafted_with_their_prefixes(codec: Codec, tmp_path: Path, opening: str) -> None:
    session = begin(codec, "Change save.", tmp_path)
    say(session, codec, f"{opening} def save(path, value):\n")
    assert drafts(session, codec, '     with open(path, "w") as file:\n         json.dump')
    say(session, codec, "-    with open(path")
    assert drafts(session, codec, ', "w") as file:\n-        json.dump')


def test_lines_of_a_patch_wait_for_its_first_hunk(codec: Codec) -> None:
    hunk_tokens = FormatTokens(codec).hunk_tokens
    assert len(hunk_tokens)
    assert not np.isin(hunk_tokens, codec.encode(CODE)).any()


def test_without_a_tokenizer_formats_stay_silent() -> None:
    session = TreeDrafter().begin(DraftRequest(np.array([1, 2, 3], np.int32)))
    assert len(session.propose(Budget())) == 0


def test_views_belong_to_the_repository_that_they_show(codec: Codec, tmp_path: Path) -> None:
    drafter = TreeDrafter()
    prompt = np.array(codec.encode("Change it."), np.int32)
    for name, other in (("load", "save"), ("save", "load")):
        snapshot = publish(tmp_path / name, {PATH: document(codec.encode(f'{name}("{name}", 5)\n' * 20))})
        session = drafter.begin(DraftRequest(prompt, snapshot, PATH, codec=codec))
        say(session, codec, '"old_string": "' + name)
        assert drafts(session, codec, f'(\\"{name}')
        assert not drafts(session, codec, f'(\\"{other}')


def test_markers_end_where_a_token_ends(codec: Codec) -> None:
    tokens = Marker("a\n", "=======\n", "    b").tokens(codec)
    assert tokens is not None
    assert codec.decode(tokens.tolist()).endswith("=======\n")


def test_the_formats_words_are_pieces_that_end_where_free_text_begins(codec: Codec) -> None:
    words = FormatTokens(codec).words(PATH)
    pieces = [codec.decode(piece[piece >= 0].tolist()) for piece in np.split(words, np.flatnonzero(words < 0))]
    assert pieces[:-1] == format_pieces(PATH)
    assert f"{PATH}\n```\n<<<<<<< SEARCH\n" in pieces
    assert any(piece.endswith('"new_string": "') for piece in pieces)


@given(st.lists(st.integers(0, 3), max_size=20), st.lists(st.integers(0, 3), min_size=1, max_size=4))
@settings(deadline=None)
def test_find_tokens_agrees_with_a_plain_search(text: list[int], part: list[int]) -> None:
    plain = next((i for i in range(len(text)) if text[i : i + len(part)] == part), None)
    assert find_tokens(np.array(text, np.int32), np.array(part, np.int32)) == plain


@given(st.text())
def test_escaped_text_stands_inside_a_json_string(text: str) -> None:
    assert json.loads(f'"{escaped(text)}"') == text


@given(
    st.lists(st.text(st.characters(blacklist_characters="\n\r", blacklist_categories=["Cs"])), min_size=5, max_size=30),
    st.integers(1, 3000),
)
@settings(deadline=None)
def test_a_numbered_view_loses_its_numbers_and_nothing_else(lines: list[str], first: int) -> None:
    view = "".join(f"{first + i:6d}\t{line}\n" for i, line in enumerate(lines))
    assert without_line_numbers(f"file (9 lines)\n{view}\nplain text\n") == "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("text", ["", "1. one\n2. two\n", "12\ta\n14\tb\n16\tc\n18\td\n20\te\n"])
def test_what_is_not_a_numbered_view_is_left_alone(text: str) -> None:
    assert without_line_numbers(text) == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (");\n", TokenClass.NEWLINE),
        ("    ", TokenClass.BLANK),
        (" self", TokenClass.SPACED_WORD),
        ("self", TokenClass.WORD),
        ("_x", TokenClass.WORD),
        (" (", TokenClass.PUNCTUATION),
        ("", TokenClass.PUNCTUATION),
        (" ", TokenClass.BLANK),
    ],
)
def test_token_classes(text: str, expected: TokenClass) -> None:
    assert token_class(text) is expected
