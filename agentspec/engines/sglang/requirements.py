"""What our plugin relies on inside SGLang, checked in its source before anything is registered.

SGLang is read, not imported: a check must not load modules earlier than SGLang itself would.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SPECULATIVE = "sglang.srt.speculative"


@dataclass(frozen=True, slots=True)
class Requirement:
    """A function, method, class or module variable.

    Attributes:
        module: where it is defined.
        name: dotted inside the module.
        parameters: names that it must accept, or, of a class, fields that its body must annotate.
    """

    module: str
    name: str
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.module}.{self.name}({', '.join(self.parameters)})"


REQUIREMENTS = (
    Requirement(
        f"{_SPECULATIVE}.spec_info", "SpeculativeAlgorithm.register", ("name", "supports_overlap", "spec_class")
    ),
    Requirement(f"{_SPECULATIVE}.spec_registry", "CustomSpecAlgo.handle_server_args", ("server_args",)),
    Requirement(f"{_SPECULATIVE}.eagle_worker_v2", "EagleDraftWorker.draft", ("batch", "with_topology")),
    Requirement(f"{_SPECULATIVE}.eagle_worker_v2", "EagleDraftWorker.draft_forward", ("forward_batch",)),
    Requirement(
        f"{_SPECULATIVE}.eagle_worker_v2", "EagleDraftWorker._draft_extend_for_decode", ("batch", "batch_result")
    ),
    Requirement(
        f"{_SPECULATIVE}.eagle_worker_v2",
        "EAGLEWorkerV2._forward_prefill_batch",
        ("batch", "on_publish", "pp_proxy_tensors"),
    ),
    Requirement(
        f"{_SPECULATIVE}.eagle_worker_v2",
        "EAGLEWorkerV2.build_adaptive_runtime_state",
        ("speculative_num_steps", "speculative_num_draft_tokens", "cuda_graph_bs"),
    ),
    Requirement(
        f"{_SPECULATIVE}.eagle_utils",
        "organize_draft_results",
        ("score_list", "token_list", "parents_list", "num_draft_token"),
    ),
    Requirement(
        f"{_SPECULATIVE}.eagle_utils", "eagle_sample", ("verify_input", "batch", "logits_output", "grammar_mask")
    ),
    Requirement(
        f"{_SPECULATIVE}.eagle_worker_common",
        "run_eagle_verify",
        (
            "batch",
            "target_worker",
            "req_to_token_pool",
            "token_to_kv_pool_allocator",
            "plan_stream",
            "plan_stream_ctx",
            "topk",
            "num_draft_tokens",
            "device",
            "metadata_ready_pre_pad",
            "finalize_tree_path",
            "grammar_barrier",
        ),
    ),
    Requirement(
        f"{_SPECULATIVE}.eagle_info",
        "EagleVerifyInput",
        (
            "draft_token",
            "custom_mask",
            "positions",
            "retrieve_index",
            "retrieve_next_token",
            "retrieve_next_sibling",
            "spec_steps",
            "topk",
            "draft_token_num",
            "draft_probs",
        ),
    ),
    Requirement(f"{_SPECULATIVE}.eagle_info", "EagleDraftInput", ("topk_p", "topk_index", "bonus_tokens")),
    Requirement(
        "sglang.kernels.ops.speculative.spec_tree",
        "verify_tree_greedy_func",
        (
            "predicts",
            "accept_index",
            "accept_token_num",
            "candidates",
            "retrieve_index",
            "retrieve_next_token",
            "retrieve_next_sibling",
            "target_predict",
            "topk",
        ),
    ),
    Requirement(
        "sglang.srt.layers.sampler",
        "Sampler.forward",
        ("logits_output", "sampling_info", "return_logprob", "top_logprobs_nums", "token_ids_logprobs", "positions"),
    ),
    Requirement(
        "sglang.srt.managers.overlap_utils",
        "FutureMap.__init__",
        ("device", "spec_algo", "req_to_token_pool", "needs_cpu_seq_lens", "needs_confidence_relay"),
    ),
    Requirement(
        "sglang.srt.managers.scheduler_components.output_streamer",
        "SchedulerOutputStreamer.build_additional_customized_info",
        ("reqs",),
    ),
    Requirement(
        "sglang.srt.managers.tokenizer_manager",
        "TokenizerManager.update_request_meta_info",
        ("meta_info", "state", "customized_info", "index", "finish_reason"),
    ),
    Requirement("sglang.srt.entrypoints.http_server", "launch_server", ("server_args",)),
    Requirement(
        "sglang.srt.entrypoints.openai.serving_chat",
        "OpenAIServingChat._generate_stream_content",
        ("content", "index", "request", "stream_offsets", "choice_logprobs", "finish_reason_type"),
    ),
    Requirement("sglang.srt.entrypoints.openai.serving_chat", "OpenAIServingChat._encoding_output"),
    Requirement(
        "sglang.srt.entrypoints.openai.serving_chat", "OpenAIServingChat._tool_call_parsing_active", ("request",)
    ),
)


def sglang_version() -> str | None:
    """The installed version; None when SGLang is not installed."""
    try:
        return version("sglang")
    except PackageNotFoundError:
        return None


def missing(requirements: Iterable[Requirement] = REQUIREMENTS) -> list[str]:
    """One line for everything that the installed SGLang lacks or has changed."""
    return [problem for requirement in requirements if (problem := _check(requirement))]


def _check(requirement: Requirement) -> str | None:
    body = _body(requirement.module)
    if body is None:
        return f"{requirement}: there is no such module"
    found: ast.stmt | None = None
    for part in requirement.name.split("."):
        found = next((node for node in body if getattr(node, "name", None) == part), None)
        if found is None:
            return f"{requirement}: there is no such name"
        body = getattr(found, "body", [])
    lacking = set(requirement.parameters) - _accepts(found)
    return f"{requirement}: lacks {', '.join(sorted(lacking))}" if lacking else None


def _accepts(node: ast.stmt | None) -> set[str]:
    if isinstance(node, ast.ClassDef):
        return {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        return {argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    return set()


@cache
def _body(module: str) -> list[ast.stmt] | None:
    """Statements of a module of SGLang, without importing it or any package above it."""
    root = importlib.util.find_spec("sglang")
    if root is None or not root.submodule_search_locations:
        return None
    file = Path(root.submodule_search_locations[0]).joinpath(*module.split(".")[1:]).with_suffix(".py")
    return ast.parse(file.read_text()).body if file.is_file() else None
