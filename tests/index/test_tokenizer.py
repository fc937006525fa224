from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from agentspec.errors import ModelError
from agentspec.index.tokenizer import IndexTokenizer, tokenizer_fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=200))
def test_tokens_give_the_text_back_and_offsets_cover_it(tokenizer: IndexTokenizer, text: str) -> None:
    (tokenized,) = tokenizer.tokenize([text])
    whole = Tokenizer.from_file(tokenizer.source)
    assert whole.decode(tokenized.tokens.tolist(), skip_special_tokens=False) == text
    covered = [False] * len(text)
    for start, end in zip(tokenized.starts.tolist(), tokenized.ends.tolist(), strict=True):
        covered[start:end] = [True] * (end - start)
    assert all(covered)


def test_text_that_looks_like_a_special_token_stays_text(tokenizer: IndexTokenizer) -> None:
    (tokenized,) = tokenizer.tokenize(["a<|end|>b"])
    special = Tokenizer.from_file(tokenizer.source).token_to_id("<|end|>")
    assert special not in tokenized.tokens.tolist()


def test_truncation_of_the_stored_tokenizer_is_off(tokenizer_file: Path, tmp_path: Path) -> None:
    stored = Tokenizer.from_file(str(tokenizer_file))
    stored.enable_truncation(4)
    stored.enable_padding(length=64)
    stored.save(str(tmp_path / "tokenizer.json"))
    (tokenized,) = IndexTokenizer(str(tmp_path), tmp_path).tokenize(["one two three four five six"])
    assert 4 < len(tokenized.tokens) < 64


def edit(part: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], None]:
    def apply(content: dict[str, Any]) -> None:
        content[part] = change(content[part])

    return apply


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (edit("padding", lambda _: None), True),
        (edit("decoder", lambda _: None), True),
        (edit("pre_tokenizer", lambda value: value | {"trim_offsets": not value["trim_offsets"]}), True),
        (edit("pre_tokenizer", lambda value: value | {"add_prefix_space": True}), False),
        (edit("normalizer", lambda _: {"type": "NFC"}), False),
        (edit("added_tokens", lambda value: value[:-1]), False),
        (edit("model", lambda value: value | {"merges": value["merges"][:-1]}), False),
    ],
)
def test_the_fingerprint_follows_what_decides_tokens(
    tokenizer_file: Path, change: Callable[[dict[str, Any]], None], same: bool
) -> None:
    content = json.loads(tokenizer_file.read_text())
    before = tokenizer_fingerprint(Tokenizer.from_str(json.dumps(content)))
    change(content)
    assert (tokenizer_fingerprint(Tokenizer.from_str(json.dumps(content))) == before) is same


def test_the_identity_is_remembered_without_loading(tokenizer_file: Path, tmp_path: Path, monkeypatch: Any) -> None:
    identity = IndexTokenizer(str(tokenizer_file), tmp_path).identity
    assert identity.vocabulary_size == Tokenizer.from_file(str(tokenizer_file)).get_vocab_size()
    monkeypatch.setattr("agentspec.index.tokenizer.Tokenizer", None)
    assert IndexTokenizer(str(tokenizer_file), tmp_path).identity == identity
    (tmp_path / "tokenizers.json").write_text("{")
    with pytest.raises(ModelError):
        _ = IndexTokenizer(str(tokenizer_file), tmp_path).identity


def test_a_changed_tokenizer_gets_a_new_identity(tokenizer_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    content = json.loads(tokenizer_file.read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content))
    before = IndexTokenizer(str(folder), tmp_path).identity
    content["normalizer"] = {"type": "NFC"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert IndexTokenizer(str(folder), tmp_path).identity.fingerprint != before.fingerprint


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no tokenizer"):
        IndexTokenizer(str(tmp_path), tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="cannot be read"):
        _ = IndexTokenizer(str(tmp_path), tmp_path).identity
    with pytest.raises(ModelError, match="no folder and no hub id"):
        IndexTokenizer("smollm", tmp_path)


def test_a_hub_tokenizer_that_was_fetched_is_used_without_the_hub(
    tokenizer_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = {("owner/model", "tokenizer.json"): str(tokenizer_file)}
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *key: cache.get(key))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_: pytest.fail("asked the hub"))
    hub = IndexTokenizer("owner/model", tmp_path).identity
    local = IndexTokenizer(str(tokenizer_file), tmp_path).identity
    assert hub.fingerprint == local.fingerprint


def test_a_name_that_the_hub_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise OSError("404")

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", refuse)
    with pytest.raises(ModelError, match="the hub has no tokenizer"):
        IndexTokenizer("owner/absent", tmp_path)
