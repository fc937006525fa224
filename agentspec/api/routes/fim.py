"""Fill-in-the-middle as other servers offer it: llama.cpp's `/infill` and Mistral's `/v1/fim/completions`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from starlette.responses import Response

from agentspec.api.chat_answers import chat_answer
from agentspec.api.errors import ERROR_RESPONSES
from agentspec.api.event_stream import until_disconnect
from agentspec.api.fim import ContextFile
from agentspec.api.generation import collect, generate
from agentspec.api.json_body import JsonRoute
from agentspec.api.requests import engine_requests, new_id
from agentspec.api.schemas.chat import ChatCompletion
from agentspec.api.schemas.fim import FimCompletionRequest, InfillRequest, InfillResponse, InfillTimings
from agentspec.api.services import CallerOf, ServicesOf
from agentspec.api.streaming import STREAM_RESPONSE, event, stream
from agentspec.engines.base import Receipt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from agentspec.engines.base import Chunk, FinishReason

router = APIRouter(route_class=JsonRoute, tags=["Fill in the middle"], responses=ERROR_RESPONSES)


@router.post("/infill", response_model=InfillResponse, responses=STREAM_RESPONSE)
async def infill(body: InfillRequest, request: Request, services: ServicesOf, caller: CallerOf) -> Response:
    """Complete code between a prefix and a suffix, with other files as context."""
    model = services.require_model(body.model)
    template = await services.fim.template()
    files = [ContextFile(extra.filename, extra.text) for extra in body.input_extra or ()]
    prompt = template.prompt(body.input_prefix, body.input_suffix, files, body.filename) + body.prompt
    warming = body.n_predict == 0
    limit = 1 if warming else None if body.n_predict == -1 else body.n_predict
    sampling = body.sampling(None, limit)
    sampling = replace(
        sampling,
        temperature=body.temperature or 0.0,
        stop_token_ids=sampling.stop_token_ids + template.end_tokens,
    )
    call_id = new_id("infill-")
    requests = engine_requests(
        services, caller=caller, fields=body, call_id=call_id, prompts=[prompt], sampling=sampling
    )
    chunks = generate(services.engine, services.metrics, [replace(requests[0], n=1)])
    if body.stream:
        return stream(services, _infill_events(chunks, call_id, model))
    [choice] = await until_disconnect(request.receive, collect(chunks, 1), services.metrics.client_left)
    answer = _last(call_id, model, choice.finish_reason, choice.receipt)
    answer.content = "" if warming else choice.text
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")


@router.post("/v1/fim/completions", response_model=ChatCompletion, responses=STREAM_RESPONSE)
async def create_fim_completion(
    body: FimCompletionRequest, request: Request, services: ServicesOf, caller: CallerOf
) -> Response:
    """Complete code between a prompt and a suffix; answers in the shape of chat completions, as Mistral does."""
    template = await services.fim.template()
    prompt = body.prompt if template.carries(body.prompt) else template.prompt(body.prompt, body.suffix or "")
    sampling = body.sampling(None, body.max_tokens)
    sampling = replace(
        sampling,
        seed=body.random_seed if body.random_seed is not None else body.seed,
        stop_token_ids=sampling.stop_token_ids + template.end_tokens,
    )
    return await chat_answer(services, caller, body, request, prompt=prompt, sampling=sampling)


async def _infill_events(chunks: AsyncGenerator[Chunk, None], call_id: str, model: str) -> AsyncGenerator[bytes, None]:
    async for chunk in chunks:
        if chunk.text:
            yield event(InfillResponse(index=0, content=chunk.text, stop=False))
        if chunk.finish_reason is not None:
            yield event(_last(call_id, model, chunk.finish_reason, chunk.receipt or Receipt()))


def _last(call_id: str, model: str, finish_reason: FinishReason, receipt: Receipt) -> InfillResponse:
    seconds = receipt.draft_seconds + receipt.verify_seconds
    return InfillResponse(
        index=0,
        content="",
        stop=True,
        id=call_id,
        model=model,
        stop_type="limit" if finish_reason == "length" else "eos",
        tokens_predicted=receipt.completion_tokens,
        tokens_evaluated=receipt.prompt_tokens,
        tokens_cached=receipt.cached_tokens,
        truncated=False,
        timings=InfillTimings(
            prompt_n=receipt.prompt_tokens - receipt.cached_tokens,
            prompt_ms=receipt.prefill_seconds * 1000,
            predicted_n=receipt.completion_tokens,
            predicted_ms=seconds * 1000,
            predicted_per_second=receipt.completion_tokens / seconds if seconds else 0.0,
        ),
    )
