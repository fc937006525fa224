"""Our part of SGLang's HTTP process: receipts kept for whoever asks for them by request id.

SGLang's streaming chat endpoint has no field for metadata of ours, so a receipt is fetched after its stream has
ended. Runs inside SGLang only.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from agentspec.engines.sglang.receipts import RECEIPT_KEY

RECEIPTS_PATH = "/agentspec/receipts"
KEPT_RECEIPTS = 4096
"""Receipts that nobody fetched are forgotten beyond this number, oldest first."""

_receipts: OrderedDict[str, dict[str, Any]] = OrderedDict()


def keep_receipt(
    result: None,  # noqa: ARG001 - what the hooked method returned
    _manager: Any,
    meta_info: dict[str, Any],
    _state: Any,
    customized_info: dict[str, Any],
    index: int,
    _finish_reason: Any,
) -> None:
    """AFTER `TokenizerManager.update_request_meta_info`: remember the receipt of a request that ended."""
    receipts = customized_info.get(RECEIPT_KEY)
    if receipts and receipts[index]:
        _receipts[meta_info["id"]] = receipts[index][-1]
        while len(_receipts) > KEPT_RECEIPTS:
            _receipts.popitem(last=False)


def add_route(*_args: Any, **_kwargs: Any) -> None:
    """BEFORE `http_server.launch_server`: `GET /agentspec/receipts/{request_id}` hands a receipt out, once."""
    from fastapi import HTTPException
    from sglang.srt.entrypoints import http_server

    async def receipt(request_id: str) -> dict[str, Any]:
        found = _receipts.pop(request_id, None)
        if found is None:
            raise HTTPException(404, f"no receipt is kept for {request_id}")
        return found

    http_server.app.add_api_route(f"{RECEIPTS_PATH}/{{request_id}}", receipt, methods=["GET"])
