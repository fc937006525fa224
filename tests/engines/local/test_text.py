"""Incremental text: unfinished characters and stop strings."""

from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import decoders, models

from agentspec.engines.local.detokenizer import Detokenizer
from agentspec.engines.local.stop_strings import StopStrings
from tests.engines.local.tiny_target import VOCABULARY


@given(text=st.text(), extra=st.lists(st.integers(0, 2), max_size=3))
def test_pieces_join_to_the_text(tiny, text, extra):
    tokens = tiny.tokenizer.encode(text)
    detokenizer = Detokenizer(tiny.tokenizer.visible_text)
    mixed = [*tokens[:3], *extra, *tokens[3:]]
    joined = "".join(detokenizer.push(token) for token in mixed) + detokenizer.flush(truncated=False)
    assert joined == tiny.tokenizer.visible_text(mixed)


@given(tokens=st.lists(st.integers(0, VOCABULARY - 1), max_size=40))
def test_any_tokens_decode_to_the_text_of_all_of_them(tiny, tokens):
    """Random tokens are full of broken characters; these come as U+FFFD, exactly as in the whole text."""
    whole = tiny.tokenizer.visible_text(tokens)
    for truncated in (False, True):
        detokenizer = Detokenizer(tiny.tokenizer.visible_text)
        pieces = [detokenizer.push(token) for token in tokens]
        assert not any(piece.endswith("\ufffd") for piece in pieces)
        joined = "".join(pieces) + detokenizer.flush(truncated=truncated)
        assert joined == (whole.rstrip("\ufffd") if truncated and joined != whole else whole)


def test_a_character_of_several_tokens_comes_whole(tiny):
    tokens = tiny.tokenizer.encode("a🦀b")
    assert len(tokens) > 3
    detokenizer = Detokenizer(tiny.tokenizer.visible_text)
    assert [piece for token in tokens if (piece := detokenizer.push(token))] == ["a", "🦀", "b"]


def test_a_cut_character_is_dropped_only_when_the_text_was_cut(tiny):
    tokens = tiny.tokenizer.encode("a🦀")[:-1]
    for truncated, end in ((True, ""), (False, "\ufffd")):
        detokenizer = Detokenizer(tiny.tokenizer.visible_text)
        assert "".join(detokenizer.push(token) for token in tokens) == "a"
        assert detokenizer.flush(truncated=truncated) == end


def test_the_first_token_after_a_release_keeps_its_space():
    """Decoders of the SentencePiece kind strip the space of a sequence's first token."""
    backend = RustTokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "!": 2}, unk_token="!"))
    backend.decoder = decoders.Metaspace()
    detokenizer = Detokenizer(backend.decode)
    assert [detokenizer.push(token) for token in (0, 1, 1, 2, 0)] == ["one", " two", " two", "!", " one"]


pieces_of_text = st.lists(st.text("ab<|", max_size=4), max_size=12)
stop_lists = st.lists(st.text("ab<|", min_size=1, max_size=4), max_size=3)


@given(pieces=pieces_of_text, stops=stop_lists)
@example(pieces=["<", "|b"], stops=["<|"])
@example(pieces=["ab", "a", "<"], stops=["aba|", "<"])
def test_stop_strings_across_pieces(pieces, stops):
    matcher = StopStrings(stops)
    released, seen = "", ""
    for piece in pieces:
        text, stop = matcher.push(piece)
        released += text
        seen += piece
        starts = [seen.find(stop) for stop in stops if stop in seen]
        assert (stop is not None) == bool(starts)
        if stop is not None:
            assert released == seen[: min(starts)]
            assert seen.startswith(stop, min(starts))
            return
        # Whatever follows, nothing released can turn out to be the beginning of a stop string, and no more is held.
        held = seen[len(released) :]
        assert seen.startswith(released)
        assert held == "" or any(stop.startswith(held) for stop in stops)
        assert not any(
            released.endswith(stop[:length]) and stop[length:].startswith(held) and length > 0
            for stop in stops
            for length in range(1, len(stop))
        )
    assert released + matcher.flush() == seen


def test_no_stop_strings_hold_nothing_back():
    assert StopStrings(("",)).push("abc") == ("abc", None)
