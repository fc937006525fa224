"""SGLang's FlashInfer backend with our tree kernel in verify steps. Runs inside SGLang only.

Prefill, decoding and EAGLE-3's own steps are SGLang's. A verify step differs in two things: its wrappers are
`TreeAttentionWrapper`, and its trees reach them as bit sets in one buffer that is written before the step, also before
the replay of a CUDA graph. No mask over the context is built anywhere: the verify mask that this backend owns, and
that the trees are laid out in, has W x W entries per request.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from sglang.kernels.ops.speculative.spec_tree import TreeMaskMode
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from sglang.srt.layers.attention.verify_mask import VerifyMask
from sglang.srt.runtime_context import get_spec

from agentspec.kernels.ancestor_bits import pack_mask, words_for
from agentspec.kernels.flashinfer_tree.variant import TreeVariant
from agentspec.kernels.flashinfer_tree.wrapper import TreeAttentionWrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_MASK = 2**40


class TreeAttentionBackend(FlashInferAttnBackend):  # type: ignore[misc]
    """Arguments are those of SGLang's backends; one backend serves one verify width.

    Raises:
        NotImplementedError: the model has sliding windows, cross attention or an asymmetric head.
        ValueError: the kernel has no form for the model's head or element types.
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
        self.prefill_wrappers_verify = [TreeAttentionWrapper(self.workspace_buffer, self._variant, self._bits)]

    @property
    def verify_mask(self) -> VerifyMask:
        """The mask that trees are laid out in, W x W per request."""
        return self._verify_mask

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int, kv_indices_buf: Any = None) -> None:
        """Allocate what graphs read; SGLang's mask over the context is let go."""
        super().init_cuda_graph_state(max_bs, max_num_tokens, kv_indices_buf)
        self.cuda_graph_custom_mask = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Plan a step that runs without a graph."""
        with self._trees_loaded(forward_batch):
            super().init_forward_metadata(forward_batch)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Plan the capture or the replay of a graph."""
        with self._trees_loaded(forward_batch):
            super().init_forward_metadata_out_graph(forward_batch, in_capture)

    def _create_prefill_wrappers(self, bs: int, use_custom_mask: bool = False) -> list[Any]:
        """Wrappers of one captured batch size; those that would take a mask are the verify step's."""
        if not use_custom_mask:
            wrappers: list[Any] = super()._create_prefill_wrappers(bs, use_custom_mask=False)
            return wrappers
        return [
            TreeAttentionWrapper(
                self.workspace_buffer,
                self._variant,
                self._bits,
                use_cuda_graph=True,
                qo_indptr_buf=self.cuda_graph_qo_indptr[0][: bs + 1],
                paged_kv_indptr_buf=self.kv_indptr[0][: bs + 1],
                paged_kv_indices_buf=self.cuda_graph_kv_indices[0],
                paged_kv_last_page_len_buf=self.kv_last_page_len[:bs],
            )
        ]

    @contextmanager
    def _trees_loaded(self, forward_batch: Any) -> Iterator[None]:
        """Write the bit sets of a verify step, and keep SGLang from building a mask while it plans."""
        trees = forward_batch.spec_info
        if not forward_batch.forward_mode.is_target_verify() or trees is None:
            yield
            return
        tail = getattr(trees, "tail_mask", None)
        if tail is not None:  # captures and warm-up steps have no trees, and their results are not used
            self._write_bits(tail)
        mask, generate = trees.custom_mask, trees.generate_attn_arg_prefill
        # One entry, seen as a mask of any length: SGLang would fill a shorter one up to the size of the context.
        trees.custom_mask = self._verify_mask.buffer[:1].expand(_LONGEST_MASK)
        trees.generate_attn_arg_prefill = lambda **arguments: (*generate(**arguments)[:3], None)
        try:
            yield
        finally:
            trees.custom_mask = mask
            del trees.generate_attn_arg_prefill

    def _write_bits(self, tail: torch.Tensor) -> None:
        if tail.shape[1] != self._width:
            raise ValueError(f"trees of {tail.shape[1]} rows on a backend of width {self._width}")
        if tail.is_cuda:
            from agentspec.kernels.triton.bits import pack_mask_into

            pack_mask_into(tail.contiguous(), self._bits)
        else:
            self._bits[: tail.shape[0] * self._width] = pack_mask(tail).flatten(0, 1)
