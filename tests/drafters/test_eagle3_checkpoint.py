"""Heads on disk: what is written loads again, what SpecForge writes loads as it is, what is wrong is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from agentspec.drafters.eagle3.checkpoint import load_head, save_head
from agentspec.drafters.eagle3.drafter import Eagle3Drafter
from agentspec.errors import ModelError
from tests.drafters.tiny_heads import HIDDEN, VOCAB, tiny_embedding, tiny_head


def load(folder, **changes):
    return load_head(folder, **{"hidden": HIDDEN, "vocab_size": VOCAB, "dtype": torch.float32, **changes})


@pytest.fixture
def folder(tmp_path):
    save_head(tiny_head(capture=(2, 4, 5)), tmp_path / "head", torch.float32)
    return tmp_path / "head"


def change(folder, **tensors):
    stored = load_file(folder / "model.safetensors")
    stored.update(tensors)
    save_file({name: value for name, value in stored.items() if value is not None}, folder / "model.safetensors")


def configure(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_a_saved_head_loads_as_it_was(folder):
    head, again = tiny_head(), load(folder)
    for name, value in head.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=0)
    assert again.config.capture == (2, 4, 5)
    assert again.config == tiny_head(capture=(2, 4, 5)).config


def test_it_is_stored_in_bfloat16_with_both_vocabulary_maps(tmp_path):
    head = tiny_head()
    save_head(head, tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["fc.weight"].dtype == torch.bfloat16
    assert (stored["d2t"] + torch.arange(12)).tolist() == head.draft_to_target.tolist()
    assert stored["t2d"].nonzero().flatten().tolist() == head.draft_to_target.tolist()


def test_a_head_as_specforge_writes_it_loads(tmp_path):
    """Key names, layer numbering and fields of a published SpecForge checkpoint, written out by hand."""
    ids = torch.tensor([1, 2, 5, 7, 11, 30, 31, 39])
    torch.manual_seed(4)
    tensors = {
        "d2t": ids - torch.arange(8),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, value=True),
        "fc.weight": torch.randn(24, 72),
        "lm_head.weight": torch.randn(8, 24),
        "midlayer.hidden_norm.weight": torch.randn(24),
        "midlayer.input_layernorm.weight": torch.randn(24),
        "midlayer.mlp.down_proj.weight": torch.randn(24, 32),
        "midlayer.mlp.gate_proj.weight": torch.randn(32, 24),
        "midlayer.mlp.up_proj.weight": torch.randn(32, 24),
        "midlayer.post_attention_layernorm.weight": torch.randn(24),
        "midlayer.self_attn.k_proj.weight": torch.randn(16, 48),
        "midlayer.self_attn.o_proj.weight": torch.randn(24, 48),
        "midlayer.self_attn.q_proj.weight": torch.randn(48, 48),
        "midlayer.self_attn.v_proj.weight": torch.randn(16, 48),
        "norm.weight": torch.randn(24),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "attention_bias": False,
        "bos_token_id": 0,
        "draft_vocab_size": 8,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 24,
        "intermediate_size": 32,
        "max_position_embeddings": 128,
        "model_type": "llama",
        "num_attention_heads": 6,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    drafter = Eagle3Drafter.load(tmp_path, tiny_embedding(), layers=6, dtype=torch.float32)
    assert drafter.capture == (2, 4, 5)
    head = load(tmp_path)
    assert head.draft_to_target.tolist() == ids.tolist()
    assert head.config.rope["rope_theta"] == 500000.0
    torch.testing.assert_close(head.qkv.weight[48:64], tensors["midlayer.self_attn.k_proj.weight"])
    session = drafter.begin()
    session.read(torch.randn(3, 72), torch.tensor([3, 1, 4]))
    tree = session.draft()
    assert len(tree)
    assert set(tree.tokens.tolist()) <= set(ids.tolist())


def test_layers_in_a_list_are_the_same_layer(folder):
    stored = load_file(folder / "model.safetensors")
    renamed = {"model." + name.replace("midlayer.", "layers.0."): value for name, value in stored.items()}
    renamed["lm_head.weight"], renamed["d2t"] = renamed.pop("model.lm_head.weight"), renamed.pop("model.d2t")
    save_file(renamed, folder / "model.safetensors")
    torch.testing.assert_close(load(folder).qkv.weight, tiny_head().qkv.weight)


REFUSED = {
    "another width": (lambda folder: load(folder, hidden=32), "width 24.*has width 32"),
    "another vocabulary": (lambda folder: load(folder, vocab_size=41), "40 tokens.*41 tokens"),
    "no folder": (lambda folder: load(folder / "none"), "cannot be read"),
    "truncated": (
        lambda folder: (
            (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100]),
            load(folder),
        ),
        "cannot be read.*fetch them again",
    ),
    "not a number": (
        lambda folder: (change(folder, **{"fc.weight": torch.full((24, 72), torch.nan)}), load(folder)),
        "NaN or infinity in fc.weight",
    ),
    "a tensor missing": (lambda folder: (change(folder, **{"norm.weight": None}), load(folder)), "lack norm.weight"),
    "a tensor of another shape": (
        lambda folder: (change(folder, **{"lm_head.weight": torch.zeros(9, 24)}), load(folder)),
        r"lm_head.weight of \[9, 24\].*\[12, 24\]",
    ),
    "no map": (lambda folder: (change(folder, d2t=None), load(folder)), "need d2t of"),
    "a map out of the vocabulary": (
        lambda folder: (change(folder, d2t=torch.full((12,), 35)), load(folder)),
        "distinct ids below 40",
    ),
    "a map onto one token": (
        lambda folder: (change(folder, d2t=-torch.arange(12)), load(folder)),
        "distinct ids below 40",
    ),
    "another arithmetic": (
        lambda folder: (configure(folder, norm_before_residual=True), load(folder)),
        "norm_before_residual, which is not supported",
    ),
    "no head at all": (
        lambda folder: (configure(folder, architectures=["LlamaForCausalLM"], draft_vocab_size=None), load(folder)),
        "lack|distinct|hold",
    ),
    "two layers": (lambda folder: (configure(folder, num_hidden_layers=2), load(folder)), "has 2 layers"),
    "layers the target lacks": (
        lambda folder: Eagle3Drafter.load(folder, tiny_embedding(), layers=4, dtype=torch.float32),
        r"\[2, 4, 5\], not three of this model's 4",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(folder, case):
    action, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        action(folder)


def test_a_language_model_is_no_head(folder):
    file = folder / "config.json"
    values = {**json.loads(file.read_text()), "architectures": ["LlamaForCausalLM"]}
    del values["draft_vocab_size"]
    file.write_text(json.dumps(values))
    with pytest.raises(ModelError, match="no EAGLE-3 head"):
        load(folder)
