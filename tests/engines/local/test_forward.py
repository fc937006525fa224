"""The forward pass against transformers' own, the oracle."""

from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentspec.engines.local.architecture import Architecture
from agentspec.engines.local.model import ModelRuntime, SequenceInput, TargetModel
from agentspec.engines.local.native_model import NativeModel
from agentspec.engines.local.torch_model import TorchModel

torch.set_num_threads(1)  # the oracle's tiny products only lose by more, most of all on a busy machine

SIZES = {
    "vocab_size": 131,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
ORACLES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama tied, llama3 rope": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE)
    ),
    "llama all biases, linear rope": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SIZES,
            attention_bias=True,
            mlp_bias=True,
            rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
        )
    ),
    "qwen2 attention bias": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen3 head norm, wide heads, yarn": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SIZES, head_dim=80, rope_parameters=YARN_ROPE)
    ),
}
"""One tiny random model for each variant that the lean forward computes."""


@pytest.fixture(scope="module", params=ORACLES)
def oracle(request):
    torch.manual_seed(7)
    model = ORACLES[request.param]().eval()
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    return model


@pytest.fixture(scope="module", params=["torch", "native", "native avx512", "native avx2", "native portable"])
def model(oracle, request):
    return build(oracle, request.param)


def build(oracle, kind: str, dtype=torch.float32, threads=1) -> TargetModel:
    architecture = Architecture.of(oracle.config)
    assert architecture is not None
    runtime = ModelRuntime(torch.device("cpu"), dtype, 256, frozenset({2}))
    fetch = oracle.state_dict().get
    if kind == "torch":
        return TorchModel(architecture, fetch, runtime)
    limit = kind.removeprefix("native").strip()
    return NativeModel(architecture, fetch, runtime, threads=threads, instruction_set=limit)


def reference(oracle, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return oracle(torch.tensor([tokens])).logits[0]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    scale = float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=3e-5 * scale)


def line(cache, tokens: list[int], **options) -> SequenceInput:
    positions = torch.arange(cache.length, cache.length + len(tokens))
    return SequenceInput(cache, torch.tensor(tokens), positions, **options)


def commit(cache, count: int) -> None:
    cache.compact(cache.length, torch.arange(count))


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return torch.randint(SIZES["vocab_size"], (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_prefill_and_decode_equal_the_oracle(oracle, model):
    tokens = random_tokens(50)
    expected = reference(oracle, tokens)
    cache = model.new_cache(64)
    close(model.forward([line(cache, tokens[:30])]), expected[:30])
    commit(cache, 30)
    for index in range(30, 50):
        close(model.forward([line(cache, tokens[index : index + 1])]), expected[index : index + 1])
        commit(cache, 1)


def test_only_the_rows_asked_for(oracle, model):
    tokens = random_tokens(20)
    expected = reference(oracle, tokens)
    rows = torch.tensor([3, 19])
    close(model.forward([line(model.new_cache(20), tokens, logit_rows=rows)]), expected[rows])


def test_no_rows_asked_for(oracle, model):
    tokens = random_tokens(20)
    cache = model.new_cache(32)
    none = torch.empty(0, dtype=torch.int64)
    assert model.forward([line(cache, tokens, logit_rows=none)]).shape == (0, SIZES["vocab_size"])
    commit(cache, 20)
    close(model.forward([line(cache, [5])])[0], reference(oracle, [*tokens, 5])[-1])


def test_sequences_of_a_batch_do_not_see_each_other(oracle, model):
    texts = [random_tokens(count, seed=count) for count in (17, 40, 1)]
    caches = [model.new_cache(48) for _ in texts]
    logits = model.forward([line(cache, text) for cache, text in zip(caches, texts, strict=True)])
    close(logits, torch.cat([reference(oracle, text) for text in texts]))


def test_hidden_states_are_those_that_enter_the_layers(oracle, model):
    tokens = random_tokens(12)
    with torch.inference_mode():
        states = oracle(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    rows = torch.tensor([2, 11])
    logits, hidden = model.forward_with_hidden([line(model.new_cache(12), tokens, logit_rows=rows)], (0, 1, 2))
    assert len(logits) == 2
    close(hidden, torch.cat([states[layer][0] for layer in (0, 1, 2)], -1))


@st.composite
def trees(draw):
    count = draw(st.integers(1, 40))
    return [draw(st.integers(-1, node - 1)) for node in range(count)]


def path_to(parents: list[int], node: int) -> list[int]:
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


@settings(max_examples=8, deadline=None)
@given(parents=trees(), prefix=st.integers(0, 40), seed=st.integers(0, 99))
def test_each_node_of_a_tree_equals_its_own_path_decoded_linearly(oracle, model, parents, prefix, seed):
    before, tokens = random_tokens(prefix, seed), random_tokens(len(parents), seed + 1)
    paths = [path_to(parents, node) for node in range(len(parents))]
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node, path in enumerate(paths):
        mask[node, path] = True
    cache = model.new_cache(prefix + len(parents) + 1)
    if prefix:
        model.forward([line(cache, before)])
        commit(cache, prefix)
    positions = prefix + mask.sum(1) - 1
    logits = model.forward([SequenceInput(cache, torch.tensor(tokens), positions, mask)])
    for node, path in enumerate(paths):
        close(logits[node], reference(oracle, before + [tokens[step] for step in path])[-1])

    # The longest path is accepted; the text goes on from it as if it had been decoded plainly.
    accepted = max(paths, key=len)
    cache.compact(prefix, torch.tensor(accepted))
    text = before + [tokens[step] for step in accepted] + [5]
    close(model.forward([line(cache, [5])])[0], reference(oracle, text)[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["native", "native avx512", "native avx2", "native portable"])
def test_native_logits_do_not_depend_on_what_is_computed_together(oracle, kind, dtype):
    """Bit for bit: alone or in a prefill, in a chunk of it, in a tree, in a batch, on one thread or three."""
    model = build(oracle, kind, dtype, threads=1)
    prefix, path, side = random_tokens(37, 1), random_tokens(9, 2), random_tokens(20, 3)
    cache = model.new_cache(96)
    alone = []
    for token in prefix + path:
        alone.append(model.forward([line(cache, [token])])[0])
        commit(cache, 1)
    expected = torch.stack(alone)

    assert torch.equal(model.forward([line(model.new_cache(64), prefix + path)]), expected)
    # The path, scattered through a tree of other nodes, beside another sequence, on several threads.
    cache.truncate(37)
    count = len(path) + len(side)
    slots = sorted(torch.randperm(count, generator=torch.Generator().manual_seed(4))[: len(path)].tolist())
    tokens, mask, depth = side + path, torch.eye(count, dtype=torch.bool), torch.zeros(count, dtype=torch.int64)
    for step, slot in enumerate(slots):
        tokens.insert(slot, tokens.pop(len(side) + step))
        mask[slot, slots[: step + 1]] = True
        depth[slot] = step
    model.threads = 3
    tree = SequenceInput(cache, torch.tensor(tokens), 37 + depth, mask, torch.tensor(slots))
    other = line(model.new_cache(32), random_tokens(14, 5), logit_rows=torch.tensor([13]))
    assert torch.equal(model.forward([other, tree])[1:], expected[37:])
    cache.compact(37, torch.tensor(slots))
    again = model.forward([line(cache, [7])])
    cache.truncate(37)
    model.forward([line(cache, path)])
    commit(cache, len(path))
    assert torch.equal(model.forward([line(cache, [7])]), again)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["native", "native avx512", "native avx2", "native portable"])
def test_native_logits_do_not_depend_on_how_many_rows_share_a_pass(kind, dtype):
    """Bit for bit, for every height of a row tile, one more, and up to several tiles."""
    torch.manual_seed(11)
    model = build(ORACLES["qwen2 attention bias"]().eval(), kind, dtype)
    tokens = random_tokens(53, 6)
    expected = model.forward([line(model.new_cache(64), tokens)])
    for count in range(1, len(tokens)):
        assert torch.equal(model.forward([line(model.new_cache(64), tokens[:count])]), expected[:count]), count


@pytest.mark.parametrize("kind", ["native", "native avx2", "native portable"])
def test_bfloat16_stays_near_the_oracle(oracle, kind):
    tokens = random_tokens(60)
    rounded = deepcopy(oracle).to(torch.bfloat16)
    expected = reference(rounded.float(), tokens)
    model = build(rounded, kind, torch.bfloat16)
    logits = model.forward([line(model.new_cache(64), tokens)])
    relative = (logits - expected).norm() / expected.norm()
    theirs = (reference(rounded.to(torch.bfloat16), tokens).float() - expected).norm() / expected.norm()
    assert relative < theirs, "rounding more than transformers' own bfloat16"


def test_other_architectures_run_through_transformers(tmp_path):
    torch.manual_seed(3)
    oracle = GPTNeoXForCausalLM(
        GPTNeoXConfig(vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
    ).eval()
    oracle.save_pretrained(tmp_path)
    model = TargetModel.load(str(tmp_path), tmp_path, device="cpu", dtype="float32")
    before, accepted = random_tokens(9), [11, 12]
    cache = model.new_cache(16)
    model.forward([line(cache, before)])
    commit(cache, 9)
    # Two branches below one root: 11 -> 12 and 11 -> 13.
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    logits, hidden = model.forward_with_hidden(
        [SequenceInput(cache, torch.tensor([11, 13, 12]), torch.tensor([9, 10, 10]), mask)], (1,)
    )
    close(logits[2], reference(oracle, before + accepted)[-1])
    assert hidden.shape == (3, 64)
    cache.compact(9, torch.tensor([0, 2]))
    close(model.forward([line(cache, [5])])[0], reference(oracle, [*before, *accepted, 5])[-1])
