"""SGLang's FlashInfer backend with our tree kernels in verify steps. Runs inside SGLang only.

Prefill, decoding and EAGLE-3's own steps are SGLang's. A verify step differs in two things: its wrappers are those of
the kernel that was measured to be the fastest for it, and its trees reach them as bit sets in one buffer that is
written before the step, also before the replay of a CUDA graph. Without a graph the kernel is chosen for every step,
with one it is part of what is captured. No mask over the context is built anywhere (unless FlashInfer's own mask was
measured to be the fastest): the verify mask that this backend owns, and that the trees are laid out in, has W x W
entries per request.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch
from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from sglang.srt.layers.attention.verify_mask import VerifyMask
from sglang.srt.runtime_context import get_spec

from agentspec.config import Settings
from agentspec.engines.sglang.kernel_choice import KernelChoice
from agentspec.kernels.ancestor_bits import pack_mask, words_for
from agentspec.kernels.flashinfer_tree.choice import make_wrapper
from agentspec.kernels.flashinfer_tree.host_layout import HostLayout
from agentspec.kernels.flashinfer_tree.variant import TreeVariant
from agentspec.kernels.full_mask import full_mask
from agentspec.kernels.kernel_table import KernelTable, TableKey
from agentspec.kernels.verify_kernels import VerifyKernel

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

_LONGEST_MASK = 2**40
_TWO_PARTS = frozenset({VerifyKernel.TWO_PART, VerifyKernel.TWO_PART_FA3})


class TreeAttentionBackend(FlashInferAttnBackend):  # type: ignore[misc]
    """Arguments are those of SGLang's backends; one backend serves one verify width.

    Raises:
        NotImplementedError: the model has sliding windows, cross attention or an asymmetric head.
        ValueError: the kernel has no form for the model's head or element types, or the settings force a kernel that
            is not exact for this width.
    """

    def __init__(self, model_runner: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(model_runner, *args, **kwargs)
        config = model_runner.model_config
        if self.dispatch_reason is not None or config.v_head_dim != config.head_dim:
            raise NotImplementedError(
                "the tree kernel serves models of full attention with equal key and value heads; "
                "start SGLang with --attention-backend flashinfer for this one"
            )
        self._width: int = get_spec().speculative_num_draft_tokens
        self._variant = TreeVariant(
            model_runner.dtype,
            self.flashinfer_kv_cache_dtype,
            config.head_dim,
            soft_cap=bool(getattr(config.hf_text_config, "attn_logit_softcapping", None)),
        )
        requests = len(self.kv_last_page_len)
        device = model_runner.device
        self._bits = torch.zeros(requests * self._width, words_for(self._width), dtype=torch.int64, device=device)
        self._verify_mask = VerifyMask(
            buffer=torch.zeros(requests * self._width**2, dtype=torch.bool, device=device),
            mode=TreeMaskMode.QLEN_ONLY,
            max_bs=requests,
        )
        self._choice = self._make_choice(device)
        self._prefix_indices: torch.Tensor | None = None
        self._eager: dict[VerifyKernel, Any] = {}
        self._captured: dict[int, VerifyKernel] = {}
        self.prefill_wrappers_verify = [self._eager_wrapper(self._choice.of(1, None))]

    @property
    def verify_mask(self) -> VerifyMask:
        """The mask that trees are laid out in, W x W per request."""
        return self._verify_mask

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int, kv_indices_buf: Any = None) -> None:
        """Allocate what graphs read; SGLang's mask over the context is let go where nothing reads it."""
        super().init_cuda_graph_state(max_bs, max_num_tokens, kv_indices_buf)
        if VerifyKernel.STOCK not in self._choice.possible:
            self.cuda_graph_custom_mask = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Plan a step that runs without a graph."""
        kernel = None
        if forward_batch.forward_mode.is_target_verify():
            lengths = forward_batch.seq_lens_cpu
            kernel = self._choice.of(forward_batch.batch_size, None if lengths is None else int(lengths.max()))
            self.prefill_wrappers_verify = [self._eager_wrapper(kernel)]
        with self._trees_loaded(forward_batch, kernel, self.prefill_wrappers_verify):
            super().init_forward_metadata(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Plan the capture or the replay of a graph."""
        kernel, wrappers = None, []
        if forward_batch.forward_mode.is_target_verify():
            size = forward_batch.batch_size
            if in_capture:
                self._captured[size] = self._choice.of(size, None)
            kernel, wrappers = self._captured[size], self.prefill_cuda_graph_metadata.get(size, [])
        with self._trees_loaded(forward_batch, kernel, [] if in_capture else wrappers):
            super().init_forward_metadata_out_graph(forward_batch, in_capture)

    def _make_choice(self, device: Any) -> KernelChoice:
        heads, kv_heads = self.indices_updater_prefill.num_qo_heads, self.indices_updater_prefill.num_kv_heads
        settings = Settings.load()
        table, gpu = None, _gpu_name(device)
        if gpu is not None:
            key = TableKey(
                gpu=gpu,
                flashinfer=version("flashinfer-python"),
                form=self._variant.name,
                heads=heads,
                kv_heads=kv_heads,
            )
            table = KernelTable.load(key, settings.cache_directory)
            logger.info("agentspec: %s", _table_message(key, table, settings))
        if self.enable_deterministic:
            table = None  # kernels round differently, and the size of a batch must not show in its text
        return KernelChoice(table, settings.sglang.verify_kernel, self._variant, self._width, heads // kv_heads)

    def _eager_wrapper(self, kernel: VerifyKernel) -> Any:
        """The wrapper of steps without a graph, made when a kernel is first needed."""
        if kernel not in self._eager:
            self._eager[kernel] = make_wrapper(kernel, self.workspace_buffer, self._variant, self._bits)
        return self._eager[kernel]

    def _create_prefill_wrappers(self, bs: int, use_custom_mask: bool = False) -> list[Any]:
        """Wrappers of one captured batch size; those that would take a mask are the verify step's."""
        kernel = self._captured.get(bs)
        if not use_custom_mask or kernel in {None, VerifyKernel.STOCK}:
            wrappers: list[Any] = super()._create_prefill_wrappers(bs, use_custom_mask)
            return wrappers
        assert kernel is not None
        return [
            make_wrapper(
                kernel,
                self.workspace_buffer,
                self._variant,
                self._bits,
                use_cuda_graph=True,
                qo_indptr_buf=self.cuda_graph_qo_indptr[0][: bs + 1],
                paged_kv_indptr_buf=self.kv_indptr[0][: bs + 1],
                paged_kv_indices_buf=self.cuda_graph_kv_indices[0],
                paged_kv_last_page_len_buf=self.kv_last_page_len[:bs],
                **({"prefix_indices": self._prefix_buffer()} if kernel in _TWO_PARTS else {}),
            )
        ]

    def _prefix_buffer(self) -> torch.Tensor:
        """Slots of the prefixes of the step at hand, shared by all captured batch sizes."""
        if self._prefix_indices is None:
            self._prefix_indices = torch.zeros_like(self.cuda_graph_kv_indices[0])
        return self._prefix_indices

    @contextmanager
    def _trees_loaded(self, forward_batch: Any, kernel: VerifyKernel | None, wrappers: list[Any]) -> Iterator[None]:
        """Write the bit sets of a verify step, and give SGLang the mask that its kernel takes while it plans: none.

        Args:
            forward_batch: the step, or any other.
            kernel: what the step runs on; None of other steps.
            wrappers: those that are planned, where they exist already.
        """
        trees = forward_batch.spec_info
        if kernel is None or trees is None:
            yield
            return
        tail = getattr(trees, "tail_mask", None)
        if tail is not None:  # captures and warm-up steps have no trees, and their results are not used
            self._write_bits(tail)
        layout = self._host_layout(forward_batch)
        for wrapper in wrappers:
            wrapper.host_layout = layout
        mask, generate = trees.custom_mask, trees.generate_attn_arg_prefill
        # One entry, seen as a mask of any length: SGLang would fill a shorter one up to the size of the context.
        trees.custom_mask = self._verify_mask.buffer[:1].expand(_LONGEST_MASK)
        stock = kernel is VerifyKernel.STOCK

        def arguments(**given: Any) -> tuple[Any, ...]:
            slots, kv_indptr, row_indptr = generate(**given)[:3]
            return slots, kv_indptr, row_indptr, self._full_mask(tail, kv_indptr, layout) if stock else None

        trees.generate_attn_arg_prefill = arguments
        try:
            yield
        finally:
            trees.custom_mask = mask
            del trees.generate_attn_arg_prefill

    def _host_layout(self, forward_batch: Any) -> HostLayout | None:
        """Sizes of a verify step, whose rows SGLang does not count into its lengths."""
        lengths = forward_batch.seq_lens_cpu
        if lengths is None:
            return None
        return HostLayout(self._width, lengths[: forward_batch.batch_size].to(torch.int32) + self._width)

    def _full_mask(self, tail: torch.Tensor | None, kv_indptr: torch.Tensor, layout: HostLayout | None) -> torch.Tensor:
        """FlashInfer's own mask; requests that only fill up a captured batch see everything."""
        lengths = (kv_indptr[1:] - kv_indptr[:-1]).cpu() if layout is None else layout.kv_lengths
        rows = torch.ones(len(lengths), self._width, self._width, dtype=torch.bool, device=kv_indptr.device)
        if tail is not None:
            rows[: len(tail)] = tail
        return full_mask(rows, (lengths - self._width).tolist())

    def _write_bits(self, tail: torch.Tensor) -> None:
        if tail.shape[1] != self._width:
            raise ValueError(f"trees of {tail.shape[1]} rows on a backend of width {self._width}")
        if tail.is_cuda:
            from agentspec.kernels.triton.bits import pack_mask_into

            pack_mask_into(tail.contiguous(), self._bits)
        else:
            self._bits[: tail.shape[0] * self._width] = pack_mask(tail).flatten(0, 1)


def _gpu_name(device: Any) -> str | None:
    return torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else None


def _table_message(key: TableKey, table: KernelTable | None, settings: Settings) -> str:
    file = key.file(settings.cache_directory)
    if table is None:
        return f"no measured choice of verify kernels at {file}; run `agentspec kernels tune` on this GPU to make one"
    return f"verify kernels are chosen by {file}"
