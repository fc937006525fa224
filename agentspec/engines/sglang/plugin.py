"""General plugin entry point: SGLang calls `register` in every one of its processes."""

from __future__ import annotations

import logging
import multiprocessing
import sys

from agentspec.engines.sglang import chat_front, cpu_backend, front, parent, receipts, requirements, tree_attention
from agentspec.engines.sglang.platform import cpu_engine_requested

logger = logging.getLogger(__name__)

_SCHEDULER = "sglang.srt.managers.scheduler"


def register() -> None:
    """Register the algorithm AGENTSPEC, its hooks, and the CPU attention backend where that engine is asked for.

    When this version of SGLang lacks something that we rely on, nothing of the algorithm is registered and the log
    says what is missing; SGLang itself goes on working.
    """
    if multiprocessing.parent_process() is None:
        parent.end_with_parent()
    if cpu_engine_requested():
        cpu_backend.register()
    if problems := requirements.missing():
        logger.error(
            "agentspec does not fit SGLang %s, AGENTSPEC is not available:\n  %s",
            requirements.sglang_version(),
            "\n  ".join(problems),
        )
        return
    from agentspec.engines.sglang import algorithm

    algorithm.register()
    tree_attention.register()
    if multiprocessing.parent_process() is None:  # hooks import what they hook, so each goes where that is loaded
        _hook_server()
    elif _SCHEDULER in sys.modules:
        _hook_scheduler()


def _hook_scheduler() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from agentspec.engines.sglang import acceptance

    eagle_sample = "sglang.srt.speculative.eagle_worker_common.eagle_sample"
    HookRegistry.register(eagle_sample, acceptance.sample, HookType.AROUND)
    streamer = "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
    HookRegistry.register(f"{streamer}.build_additional_customized_info", receipts.for_streamer, HookType.REPLACE)
    tree_attention.keep_drafting_stock()


def _hook_server() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    manager = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
    HookRegistry.register(f"{manager}.update_request_meta_info", front.keep_receipt, HookType.AFTER)
    HookRegistry.register("sglang.srt.entrypoints.http_server.launch_server", front.add_route, HookType.BEFORE)
    chat = "sglang.srt.entrypoints.openai.serving_chat.OpenAIServingChat"
    HookRegistry.register(f"{chat}._generate_stream_content", chat_front.one_token_at_a_time, HookType.AROUND)
