"""The metadata logic of the tree attention backend: SGLang's own FlashInfer backend around FlashInfer's own wrappers.

Both are real; torch stands in for the compiled kernels.
"""

import importlib.metadata
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from agentspec.drafters.tree import DraftTree, Source
from agentspec.engines.sglang import tree_attention
from agentspec.engines.sglang._native import pack
from agentspec.engines.sglang.kernel_choice import KernelChoice
from agentspec.kernels.flashinfer_tree.variant import TreeVariant
from agentspec.kernels.kernel_table import KernelTable, Measurement, TableKey
from agentspec.kernels.verify_kernels import VerifyKernel
from tests.kernels.flashinfer_module import CAUSAL, CUSTOM, NON_CAUSAL, install

pytestmark = pytest.mark.sglang

HEADS, KV_HEADS, DIM = 4, 2, 64
SLOTS, CONTEXT, REQUESTS = 400, 64, 4


class OtherWrapper:
    """Stands in for wrappers of steps that verify nothing."""

    is_cuda_graph_enabled = False

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class Translator:
    """SGLang's page table: which slot every position of a request has."""

    reads_are_translated = False

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def pack_read_stream(
        self, plan: Any, *, req_pool_indices: Any, seq_lens: Any, indptr: Any, out: Any, **_: Any
    ) -> None:
        for b, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
            out[int(indptr[b]) : int(indptr[b]) + length] = self.table[row, :length]


class Pool:
    """Keys and values of one layer."""

    def __init__(self) -> None:
        self.keys = torch.full((SLOTS, KV_HEADS, DIM), torch.nan, dtype=torch.bfloat16)
        self.values = self.keys.clone()

    def get_kv_cache_quant_method(self) -> Any:
        return SimpleNamespace(resolve_attention_access=lambda *_: None, needs_global_scale=lambda: False)

    def get_kv_buffer(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.keys, self.values

    def set_kv_buffer(self, layer: Any, where: Any, k: torch.Tensor, v: torch.Tensor, *_: Any) -> None:
        self.keys[where.loc], self.values[where.loc] = k, v


@pytest.fixture
def make_backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes backends of any width in a process without GPU, server arguments or parallel groups."""
    stock = import_module("sglang.srt.layers.attention.flashinfer_backend")
    ours = import_module("agentspec.engines.sglang.tree_attention_backend")
    module = install(monkeypatch)
    prefill = import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper
    monkeypatch.setattr(stock, "BatchPrefillWithPagedKVCacheWrapper", prefill, raising=False)
    for kind in ("PrefillWithRagged", "DecodeWithPaged"):  # imported where there is a GPU only
        monkeypatch.setattr(stock, f"Batch{kind}KVCacheWrapper", OtherWrapper, raising=False)
    deterministic = SimpleNamespace(enable_deterministic_inference=False)
    monkeypatch.setattr(ours, "deterministic", deterministic, raising=False)
    features = SimpleNamespace(enable_mis=False)
    monkeypatch.setattr(stock, "get_exec", lambda: SimpleNamespace(features=features, deterministic=deterministic))
    monkeypatch.setattr(stock, "get_parallel", lambda: SimpleNamespace(attn_tp_size=1, attn_dcp_size=1))
    monkeypatch.setattr(stock, "get_platform", lambda: SimpleNamespace(is_sm100=False))
    monkeypatch.setattr(stock, "get_buffer", lambda name, make: torch.empty(1 << 10, dtype=torch.uint8))
    monkeypatch.setattr(stock, "should_use_tensor_core", lambda **_: True)
    monkeypatch.setattr(stock.DllmConfig, "from_server_args", staticmethod(lambda _: None))
    monkeypatch.setattr(stock, "get_cuda_graph_max_batch_size", lambda size: size)
    zeros = torch.zeros
    monkeypatch.setattr(
        stock.torch, "zeros", lambda *a, **k: zeros(*a, **k | ({"device": "cpu"} if k.get("device") else {}))
    )

    def make(width: int, kernel: str = "auto", **changes: Any) -> Any:
        monkeypatch.setenv("AGENTSPEC_SGLANG__VERIFY_KERNEL", kernel)
        monkeypatch.setattr(ours, "get_spec", lambda: SimpleNamespace(speculative_num_draft_tokens=width))
        table = torch.randperm(SLOTS - 1)[: REQUESTS * CONTEXT].view(REQUESTS, CONTEXT) + 1
        config = SimpleNamespace(
            num_attention_heads=HEADS,
            get_num_kv_heads=lambda *_: KV_HEADS,
            get_max_num_attention_heads=lambda: HEADS,
            head_dim=DIM,
            v_head_dim=DIM,
            context_len=CONTEXT,
            is_multimodal=False,
            is_encoder_decoder=False,
            hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"]),
            hf_text_config=SimpleNamespace(),
        )
        runner = SimpleNamespace(
            req_to_token_pool=SimpleNamespace(req_to_token=table, size=REQUESTS),
            token_to_kv_pool=Pool(),
            kv_index_translator=Translator(table),
            server_args=None,
            prefill_attention_backend_str="x",
            decode_attention_backend_str="x",
            kv_cache_dtype=torch.bfloat16,
            dtype=torch.bfloat16,
            model_config=config,
            page_size=1,
            sliding_window_size=None,
            is_draft_worker=False,
            token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: None),
            device="cpu",
            **changes,
        )
        backend = ours.TreeAttentionBackend(runner)
        backend.module = module
        return backend, table

    return make


def chain_with_branch(rng: np.random.Generator, nodes: int) -> DraftTree:
    parents = [int(rng.integers(max(-1, node - 3), node)) for node in range(nodes)]
    tokens = np.arange(nodes, dtype=np.int32)
    return DraftTree(
        tokens, np.array(parents, np.int32), np.ones(nodes, np.float32), np.full(nodes, Source.REQUEST, np.uint8)
    )


def verify_batch(trees: list[DraftTree], prefixes: list[int], width: int, table: torch.Tensor) -> Any:
    """A verify step as the worker hands it to the backend, and the masks it must be computed with."""
    lengths = np.array(prefixes, np.int64)
    packed = pack([t.tokens for t in trees], [t.parents for t in trees], lengths * 0, lengths, width)
    mask = torch.from_numpy(packed[2])
    spec = import_module("agentspec.engines.sglang.verify_input").AgentspecVerifyInput(
        draft_token=None,
        custom_mask=mask.flatten(),
        positions=None,
        retrieve_index=None,
        retrieve_next_token=None,
        retrieve_next_sibling=None,
        retrieve_cum_len=None,
        spec_steps=width - 1,
        topk=-1,
        draft_token_num=width,
        capture_hidden_mode=None,
        seq_lens_sum=None,
        seq_lens_cpu=None,
        nodes=[len(tree) + 1 for tree in trees],
        tail_mask=mask,
    )
    where = torch.cat([table[b, p : p + width] for b, p in enumerate(prefixes)])
    batch = SimpleNamespace(
        batch_size=len(trees),
        req_pool_indices=torch.arange(len(trees)),
        seq_lens=torch.tensor(prefixes),
        seq_lens_cpu=torch.tensor(prefixes),
        seq_lens_sum=sum(prefixes),
        encoder_lens=None,
        forward_mode=import_module("sglang.srt.model_executor.forward_batch_info").ForwardMode.TARGET_VERIFY,
        spec_info=spec,
        kv_loc_plan=None,
        out_cache_loc=where,
        out_cache_loc_is_physical=False,
        positions=torch.zeros(len(trees) * width),
    )
    return batch, mask


def layer() -> Any:
    return SimpleNamespace(
        layer_id=0,
        logit_cap=0.0,
        is_cross_attention=False,
        attn_type=None,
        tp_q_head_num=HEADS,
        tp_k_head_num=KV_HEADS,
        tp_v_head_num=KV_HEADS,
        head_dim=DIM,
        scaling=DIM**-0.5,
        sliding_window_size=-1,
        k_scale=None,
        v_scale=None,
        k_scale_float=None,
        v_scale_float=None,
    )


def verify(backend: Any, table: torch.Tensor, batch: Any, mask: torch.Tensor, prefixes: list[int], rows: int) -> None:
    """Run the planned step and compare it with plain attention under the full mask."""
    torch.manual_seed(rows)
    pool, width = backend.token_to_kv_pool, mask.shape[1]
    for b, prefix in enumerate(prefixes):
        pool.keys[table[b, :prefix]] = torch.randn(prefix, KV_HEADS, DIM).bfloat16()
        pool.values[table[b, :prefix]] = torch.randn(prefix, KV_HEADS, DIM).bfloat16()
    q = torch.randn(rows, HEADS, DIM).bfloat16()
    k, v = (torch.randn(rows, KV_HEADS, DIM).bfloat16() for _ in range(2))
    got = backend.forward_extend(q.flatten(1), k, v, layer(), batch).view(rows, HEADS, DIM)
    for b, prefix in enumerate(prefixes[: len(mask)]):
        here = slice(b * width, (b + 1) * width)
        slots = table[b, : prefix + width]
        visible = torch.cat([torch.ones(width, prefix, dtype=torch.bool), mask[b]], 1)
        expected = torch.nn.functional.scaled_dot_product_attention(
            q[here].transpose(0, 1).double()[None],
            pool.keys[slots].transpose(0, 1).double()[None],
            pool.values[slots].transpose(0, 1).double()[None],
            visible,
            enable_gqa=True,
        )[0].transpose(0, 1)
        torch.testing.assert_close(got[here].double(), expected, rtol=0, atol=2e-2)


MODES = {
    "owned": [CUSTOM],
    "diagonal": [CAUSAL],
    "two_part": [NON_CAUSAL, CUSTOM],
    "two_part_fa3": [NON_CAUSAL, CUSTOM],
    "stock": [CUSTOM],
}
"""FlashInfer's mask mode of every pass, by kernel."""


@pytest.mark.parametrize("kernel", MODES)
@pytest.mark.parametrize("width", [1, 6, 40])
def test_a_step_without_a_graph(make_backend: Any, width: int, kernel: str) -> None:
    if (width, kernel) == (40, "diagonal"):
        width = 32  # wider trees do not fit one tile
    backend, table = make_backend(width, kernel)
    rng = np.random.default_rng(width)
    for prefixes in ([9], [3, 20], [1, 7, 5]):
        trees = [chain_with_branch(rng, int(rng.integers(0, width))) for _ in prefixes]
        batch, mask = verify_batch(trees, prefixes, width, table)
        before = batch.spec_info.custom_mask
        backend.module.modes.clear()
        backend.init_forward_metadata(batch)
        assert batch.spec_info.custom_mask is before, "the step's own mask is left as it was"
        assert "generate_attn_arg_prefill" not in vars(batch.spec_info)
        verify(backend, table, batch, mask, prefixes, len(prefixes) * width)
        assert backend.module.modes == MODES[kernel]
    assert set(backend.module.backends) == {"two_part": {"fa2"}, "two_part_fa3": {"fa3"}, "stock": {"fa2"}}.get(
        kernel, set()
    )


@pytest.mark.parametrize("kernel", MODES)
def test_replays_read_the_bits_and_pages_of_their_own_step(make_backend: Any, kernel: str) -> None:
    """Two captured batch sizes share the buffers; replays alternate, and each must compute its own trees."""
    width = 6
    backend, table = make_backend(width, kernel)
    backend.init_cuda_graph_state(REQUESTS, REQUESTS * width)
    rng = np.random.default_rng(0)
    for bs in (1, 3):
        capture(backend, table, bs, width)
    read: dict[int, list[int]] = {}
    for prefixes in ([9], [3, 20, 4], [30], [2, 2, 2]):
        trees = [chain_with_branch(rng, int(rng.integers(1, width))) for _ in prefixes]
        batch, mask = verify_batch(trees, prefixes, width, table)
        addresses = replay(backend, table, batch, mask, prefixes)
        assert addresses == read.setdefault(len(prefixes), addresses), "a graph reads where it was captured"


def capture(backend: Any, table: torch.Tensor, bs: int, width: int) -> None:
    batch, _ = verify_batch([chain_with_branch(np.random.default_rng(0), 0)] * bs, [1] * bs, width, table)
    batch.spec_info.tail_mask = None  # a capture has no trees
    backend.init_forward_metadata_out_graph(batch, in_capture=True)


def replay(backend: Any, table: torch.Tensor, batch: Any, mask: torch.Tensor, prefixes: list[int]) -> list[int]:
    """Plan and compute a replay; returns the addresses of all device memory that the kernels were pointed to."""
    backend.init_forward_metadata_out_graph(batch)
    [wrapper] = backend.prefill_cuda_graph_metadata[len(prefixes)]
    assert wrapper.is_cuda_graph_enabled
    backend.forward_metadata = SimpleNamespace(
        prefill_wrappers=[wrapper], use_ragged=False, swa_out_cache_loc=None, multi_item_params=None
    )
    pointed: list[int] = []
    run = backend.module.paged_run

    def note(*arguments: Any) -> None:
        pointed.extend(one.data_ptr() for one in (*arguments[6:10], *arguments[16:18]) if torch.is_tensor(one))
        run(*arguments)

    backend.module.paged_run = note
    try:
        verify(backend, table, batch, mask, prefixes, len(prefixes) * mask.shape[1])
    finally:
        backend.module.paged_run = run
    return pointed


def measured(kernels: dict[tuple[int, int], str]) -> KernelTable:
    """A table in which, at every (batch, context), one kernel is twice as fast as the others."""
    key = TableKey(gpu="g", flashinfer="0", form="f", heads=HEADS, kv_heads=KV_HEADS)
    rows = [
        Measurement(
            rows=6,
            batch=batch,
            context=context,
            microseconds={kernel: 10.0 if kernel == fastest else 20.0 for kernel in VerifyKernel},
        )
        for (batch, context), fastest in kernels.items()
    ]
    return KernelTable(key=key, measurements=tuple(rows))


def choose_by(backend: Any, table: KernelTable, forced: str = "auto") -> None:
    backend._choice = KernelChoice(table, forced, backend._variant, backend._width, HEADS // KV_HEADS)


def test_every_step_runs_on_the_kernel_measured_for_it(make_backend: Any) -> None:
    backend, table = make_backend(6)
    choose_by(backend, measured({(1, 4): "owned", (1, 40): "two_part", (3, 4): "diagonal", (3, 40): "stock"}))
    rng = np.random.default_rng(1)
    steps = [([2], "owned"), ([45], "two_part"), ([3, 2, 2], "diagonal"), ([3, 45, 9], "stock"), ([3], "owned")]
    for prefixes, kernel in steps:
        batch, mask = verify_batch([chain_with_branch(rng, 5) for _ in prefixes], prefixes, 6, table)
        backend.module.modes.clear()
        backend.init_forward_metadata(batch)
        verify(backend, table, batch, mask, prefixes, len(prefixes) * 6)
        assert backend.module.modes == MODES[kernel], kernel


def test_every_graph_is_captured_with_the_kernel_measured_for_it(make_backend: Any) -> None:
    backend, table = make_backend(6)
    choose_by(backend, measured({(1, 4): "owned", (3, 4): "two_part", (2, 4): "stock"}))
    backend.init_cuda_graph_state(REQUESTS, REQUESTS * 6)
    for bs in (3, 2, 1):
        capture(backend, table, bs, 6)
    rng = np.random.default_rng(2)
    for prefixes, kernel in (([9], "owned"), ([3, 20, 4], "two_part"), ([5, 6], "stock"), ([30], "owned")):
        batch, mask = verify_batch([chain_with_branch(rng, 4) for _ in prefixes], prefixes, 6, table)
        backend.module.modes.clear()
        replay(backend, table, batch, mask, prefixes)
        assert backend.module.modes == MODES[kernel], kernel


def test_a_captured_batch_that_is_not_full(make_backend: Any) -> None:
    """A graph for three requests replays two; the third is a row of padding that nobody reads."""
    for kernel in MODES:
        backend, table = make_backend(6, kernel)
        backend.init_cuda_graph_state(REQUESTS, REQUESTS * 6)
        capture(backend, table, 3, 6)
        rng = np.random.default_rng(3)
        padded, mask = verify_batch([chain_with_branch(rng, 5) for _ in range(3)], [8, 4, 1], 6, table)
        padded.spec_info.tail_mask = mask[:2]
        replay(backend, table, padded, mask[:2], [8, 4, 1])


def test_without_measurements_the_owned_kernel_is_used(make_backend: Any) -> None:
    backend, _ = make_backend(6)
    assert backend._choice.possible == {VerifyKernel.OWNED}
    assert backend._choice.of(4, 10_000) is VerifyKernel.OWNED


def test_the_table_of_this_gpu_is_read_but_not_in_deterministic_mode(
    make_backend: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kernels round differently, and the size of a batch must not show in the text of a seed."""
    ours = import_module("agentspec.engines.sglang.tree_attention_backend")
    monkeypatch.setenv("AGENTSPEC_CACHE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(ours, "_gpu_name", lambda _: "Some GPU")
    form = TreeVariant(torch.bfloat16, torch.bfloat16, DIM).name
    version = importlib.metadata.version("flashinfer-python")
    key = TableKey(gpu="Some GPU", flashinfer=version, form=form, heads=HEADS, kv_heads=KV_HEADS)
    table = measured({(1, 4): "two_part"})
    table.model_copy(update={"key": key}).save(tmp_path)
    backend, _ = make_backend(6)
    assert backend._choice.of(1, None) is VerifyKernel.TWO_PART
    ours.deterministic.enable_deterministic_inference = True
    backend, _ = make_backend(6)
    assert backend._choice.of(1, None) is VerifyKernel.OWNED


def test_a_kernel_that_is_not_exact_is_refused(make_backend: Any) -> None:
    with pytest.raises(ValueError, match="verify_kernel=diagonal is not exact for 70 rows"):
        make_backend(70, "diagonal")


def test_nothing_of_the_size_of_the_context_is_kept_for_the_mask(make_backend: Any) -> None:
    backend, _ = make_backend(6)
    backend.init_cuda_graph_state(REQUESTS, REQUESTS * 6)
    assert backend.cuda_graph_custom_mask is None
    requests = backend.verify_mask.max_bs
    assert backend.verify_mask.buffer.numel() == requests * 6 * 6
    assert backend._bits.shape == (requests * 6, 1)
    assert backend.verify_mask.mode.name == "QLEN_ONLY"


def test_trees_of_another_width_are_refused(make_backend: Any) -> None:
    backend, table = make_backend(6)
    batch, _ = verify_batch([chain_with_branch(np.random.default_rng(0), 3)], [4], 5, table)
    with pytest.raises(ValueError, match="trees of 5 rows on a backend of width 6"):
        backend.init_forward_metadata(batch)


def test_wide_trees_have_more_words(make_backend: Any) -> None:
    backend, _ = make_backend(70)
    assert backend._bits.shape[1] == 2


def test_draft_steps_of_the_backend_are_sglangs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime_context = import_module("sglang.srt.runtime_context")
    for configured, expected in ((tree_attention.NAME, "flashinfer"), ("fa3", None)):
        monkeypatch.setattr(runtime_context, "attention_backends", lambda name=configured: (name, name))
        factory = SimpleNamespace(draft_attn_backend=None)
        assert tree_attention._draft_backend(lambda one: one, factory) is factory
        assert factory.draft_attn_backend == expected
