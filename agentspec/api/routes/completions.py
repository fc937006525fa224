"""`POST /v1/completions`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from agentspec.api.errors import ERROR_RESPONSES
from agentspec.api.event_stream import until_disconnect
from agentspec.api.generation import collect, generate
from agentspec.api.json_body import JsonRoute
from agentspec.api.logprobs import completion_logprobs
from agentspec.api.requests import engine_requests, new_id
from agentspec.api.schemas.completions import DEFAULT_MAX_TOKENS, Completion, CompletionChoice, CompletionRequest
from agentspec.api.schemas.usage import ReceiptField, Usage
from agentspec.api.services import CallerOf, ServicesOf
from agentspec.api.streaming import STREAM_RESPONSE, StreamEncoder, stream
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentspec.api.fim import FimDetector
    from agentspec.api.generation import Choice
    from agentspec.engines.base import Chunk, Engine, TokenLogprob

router = APIRouter(route_class=JsonRoute, tags=["OpenAI"], responses=ERROR_RESPONSES)


@router.post(
    "/v1/completions",
    response_model=Completion,
    responses=STREAM_RESPONSE,
)
async def create_completion(
    body: CompletionRequest, request: Request, services: ServicesOf, caller: CallerOf
) -> Response:
    """Continue text or tokens as they are."""
    model = services.require_model(body.model)
    prompts = body.prompts()
    sampling = body.sampling(body.logprobs, body.max_tokens or DEFAULT_MAX_TOKENS)
    echoes = await _echoes(services.engine, body, prompts)
    prompts, ends = await _filled_in(services.fim, body, prompts)
    sampling = replace(sampling, stop_token_ids=sampling.stop_token_ids + ends)
    call_id = new_id("cmpl-")
    requests = engine_requests(
        services, caller=caller, fields=body, call_id=call_id, prompts=prompts, sampling=sampling
    )
    chunks = generate(services.engine, services.metrics, requests)
    if body.stream:
        return stream(services, _CompletionStream(body, call_id, model, echoes).events(chunks))
    choices = await until_disconnect(request.receive, collect(chunks, len(echoes)), services.metrics.client_left)
    answer = _completion(body, call_id, model, choices, echoes)
    return Response(answer.model_dump_json(exclude_unset=True), media_type="application/json")


async def _filled_in(
    fim: FimDetector, body: CompletionRequest, prompts: list[str | tuple[int, ...]]
) -> tuple[list[str | tuple[int, ...]], tuple[int, ...]]:
    """The prompts with the suffix worked in, and the tokens that end a completion then.

    A prompt that is written in the model's template already stays as it is.

    Raises:
        InvalidRequestError: a suffix comes with token ids, or the model has no template.
    """
    if body.suffix and not all(isinstance(prompt, str) for prompt in prompts):
        raise InvalidRequestError("suffix needs a prompt of text; token ids carry their own template", "suffix")
    template = await fim.template() if body.suffix else await fim.find()
    if template is None:
        return prompts, ()
    carried = [isinstance(prompt, str) and template.carries(prompt) for prompt in prompts]
    if not body.suffix:
        return prompts, template.end_tokens if all(carried) else ()
    filled = [
        prompt if carries or not isinstance(prompt, str) else template.prompt(prompt, body.suffix)
        for prompt, carries in zip(prompts, carried, strict=True)
    ]
    return filled, template.end_tokens


async def _echoes(engine: Engine, body: CompletionRequest, prompts: Sequence[str | tuple[int, ...]]) -> list[str]:
    """Text that each choice starts with: its prompt when `echo` is set, else nothing."""
    texts = ["" for _ in prompts]
    if body.echo:
        texts = [prompt if isinstance(prompt, str) else await engine.detokenize(prompt) for prompt in prompts]
    return [text for text in texts for _ in range(body.choices)]


def _completion(
    body: CompletionRequest, call_id: str, model: str, choices: Sequence[Choice], echoes: Sequence[str]
) -> Completion:
    receipts = [choice.receipt for choice in choices]
    answer = Completion(
        id=call_id,
        object="text_completion",
        created=int(time.time()),
        model=model,
        choices=[
            CompletionChoice(
                index=index,
                text=echo + choice.text,
                logprobs=completion_logprobs(choice.logprobs, 0) if body.logprobs is not None else None,
                finish_reason=choice.finish_reason,
            )
            for index, (choice, echo) in enumerate(zip(choices, echoes, strict=True))
        ],
        usage=Usage.of(receipts, body.choices),
    )
    if body.wants_receipt:
        answer.agentspec = ReceiptField.of(receipts)
    return answer


class _CompletionStream(StreamEncoder):
    """Encodes streamed continuations."""

    def __init__(self, body: CompletionRequest, call_id: str, model: str, echoes: Sequence[str]) -> None:
        super().__init__(body, choices=len(echoes))
        self._head: dict[str, Any] = {
            "id": call_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._pending_echo = dict(enumerate(echoes))
        self._offsets = [0] * len(echoes)

    def bodies(self, chunk: Chunk) -> Iterator[Completion]:
        """The text that `chunk` added, with the finish when it is the choice's last."""
        text = self._pending_echo.pop(chunk.index, "") + chunk.text
        logprobs = None
        if chunk.logprobs:
            logprobs = completion_logprobs(chunk.logprobs, self._advance(chunk.index, chunk.logprobs))
        if text or logprobs or chunk.finish_reason is not None:
            choice = CompletionChoice(
                index=chunk.index, text=text, logprobs=logprobs, finish_reason=chunk.finish_reason
            )
            yield Completion(**self._head, choices=[choice])

    def usage_body(self, usage: Usage) -> Completion:
        """The chunk without choices that ends a stream whose client asked for usage."""
        return Completion(**self._head, choices=[], usage=usage)

    def _advance(self, index: int, tokens: Sequence[TokenLogprob]) -> int:
        """Characters of the choice's tokens so far; the new ones are added for the next call."""
        offset = self._offsets[index]
        self._offsets[index] += sum(len(token.text) for token in tokens)
        return offset
