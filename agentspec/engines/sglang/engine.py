"""The engine contract on top of a SGLang server, started here or running already."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.engines.base import ChatPrompt, Chunk, EngineStats, ModelInfo, served_model
from agentspec.engines.sglang.begun_answer import TAIL_TOKENS, closing_of, refuse_framed
from agentspec.engines.sglang.binding import PARAMS_KEY
from agentspec.engines.sglang.chat_stream import ChatStream
from agentspec.engines.sglang.choice import Choice
from agentspec.engines.sglang.client import SGLangClient
from agentspec.engines.sglang.gauges import Gauges
from agentspec.engines.sglang.generate_stream import GenerateStream
from agentspec.engines.sglang.launcher import Supervisor
from agentspec.engines.sglang.merged_streams import MergedStreams
from agentspec.engines.sglang.repository_use import RepositoryUse
from agentspec.engines.sglang.sampling import sampling_params, tool_params
from agentspec.errors import AgentspecError, EngineUnavailableError, ModelError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from agentspec.config import Settings
    from agentspec.engines.base import GenerationRequest, SamplingParams
    from agentspec.engines.local.preparation import RepositorySource


class SGLangEngine:
    """Serves a model through SGLang.

    Args:
        settings: all of them; `sglang.url` attaches to a server that runs already.
        model: folder or hub id; what the server loads when it is started here.
        repositories: gives the newest index snapshot of a repository by id and tokenizer fingerprint.
    """

    def __init__(self, settings: Settings, model: str, *, repositories: RepositorySource | None = None) -> None:
        self._settings = settings
        self._repositories = RepositoryUse(settings.index.directory, repositories)
        self._supervisor = None if settings.sglang.url else Supervisor(settings, model)
        self._client = SGLangClient(settings.sglang.url or self._supervisor_url())
        self._model: ModelInfo | None = None
        self._reasoning_parser: str | None = None
        self._gauges = Gauges(self._client)
        self._progress = 0
        self._running: dict[str, list[str]] = {}

    def _supervisor_url(self) -> str:
        assert self._supervisor is not None
        return self._supervisor.url

    @property
    def model(self) -> ModelInfo:
        """The served model.

        Raises:
            EngineUnavailableError: before `start`.
        """
        return served_model(self._model)

    async def start(self) -> None:
        """Start the server, or find the one that runs, and learn what it serves.

        Raises:
            ModelError: it cannot be started or reached.
        """
        if self._supervisor is not None:
            await self._supervisor.start()
        try:
            info = await self._client.get("/server_info")
            listed = (await self._client.get("/v1/models"))["data"][0]
        except AgentspecError as error:
            raise ModelError(f"no SGLang server answers at {self._settings.sglang.url}: {error}") from error
        self._reasoning_parser = info.get("reasoning_parser") or None
        await asyncio.to_thread(self._repositories.learn_tokenizer, info["tokenizer_path"])
        name = self._settings.engine.served_name or _name_of(listed["id"], self._settings)
        self._model = ModelInfo(name, int(listed["max_model_len"]), int(time.time()))
        self._gauges.start()

    async def stop(self) -> None:
        """Abort what runs and end the server, if it was started here. Idempotent."""
        for request_id in list(self._running):
            await self.abort(request_id)
        await self._gauges.stop()
        await self._client.close()
        if self._supervisor is not None:
            await self._supervisor.stop()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """Stream the choices of one request; see `agentspec.engines.base.Engine.generate`.

        Every choice is a request of its own to SGLang, which shares their prompt through its prefix cache.
        """
        self._refuse_when_down()
        sampling = request.sampling
        if sampling.seed is None and self._settings.sglang.deterministic:
            sampling = replace(sampling, seed=secrets.randbits(31))  # SGLang would take the same one for everybody
        params = sampling_params(sampling, self._settings.sglang.deterministic)
        warnings = _unfulfilled(sampling, self._settings)
        prompt = await self._prompt(request)
        custom = {PARAMS_KEY: self._binding(request, await self._prediction(request), warnings)}
        names = [f"{request.id}-{index}-{secrets.token_hex(4)}" for index in range(request.n)]
        streams = []
        for index, name in enumerate(names):
            seed = None if sampling.seed is None else sampling.seed + index
            choice = Choice(
                name,
                index,
                sampling,
                params,
                seed,
                custom,
                tuple(warnings),
                request.output_format,
                tool_params(request.callable_tools(), request.tool_choice),
            )
            stream = (
                ChatStream(self._client, choice, prompt)
                if isinstance(prompt, ChatPrompt)
                else GenerateStream(self._client, choice, prompt)
            )
            streams.append(stream.chunks())
        merged = MergedStreams(streams)
        self._running[request.id] = names
        try:
            async for chunk in merged.chunks():
                self._progress += 1
                yield chunk
            names.clear()
        finally:
            await self._end(request.id, merged)

    async def _end(self, request_id: str, streams: MergedStreams) -> None:
        """Stop what is left of a request; SGLang alone would notice a closed connection after two seconds."""
        names = self._running.pop(request_id, [])
        await asyncio.shield(asyncio.gather(*(self._client.abort(name) for name in names)))
        await streams.close()

    async def abort(self, request_id: str) -> None:
        """End a request; its stream closes with finish reason "abort". Unknown ids are ignored."""
        for name in self._running.get(request_id, ()):
            await self._client.abort(name)

    def stats(self) -> EngineStats:
        """State as of the last poll, at most a second or two old."""
        gauges = self._gauges
        return EngineStats(
            ready=self._is_ready(),
            running=gauges.running,
            waiting=gauges.waiting,
            kv_tokens_used=gauges.kv_tokens_used,
            kv_tokens_total=gauges.kv_tokens,
            progress=self._progress,
        )

    async def tokenize(self, prompt: str | ChatPrompt) -> list[int]:
        """Token ids of a prompt as the target would see it.

        Raises:
            InvalidRequestError: its answer is begun, and the model can only begin answers by itself.
        """
        body: dict[str, Any] = {"prompt": prompt}
        if isinstance(prompt, ChatPrompt):
            body = {
                "messages": list(prompt.messages),
                "tools": None if prompt.tools is None else list(prompt.tools),
                "chat_template_kwargs": dict(prompt.template_kwargs) or None,
            }
        tokens: list[int] = (await self._client.post("/tokenize", body))["tokens"]
        if isinstance(prompt, ChatPrompt) and prompt.answer_prefix:
            return await self._with_begun_answer(tokens, prompt.answer_prefix)
        return tokens

    async def _with_begun_answer(self, tokens: list[int], begun: str) -> list[int]:
        """A rendered prompt and what its answer begins with; reasoning that the template has opened is ended unused."""
        refuse_framed(self._reasoning_parser)
        closing = closing_of(await self.detokenize(tokens[-TAIL_TOKENS:]))
        if closing is not None:
            while not (last := await self.detokenize(tokens[-1:])).strip():
                tokens = tokens[:-1]
            begun = f"\n\n{closing}\n\n{begun}".removeprefix(last[len(last.rstrip()) :])
        return tokens + await self._plain_tokens(begun)

    async def _plain_tokens(self, text: str) -> list[int]:
        """Token ids of text without special tokens added."""
        body = {"prompt": text, "add_special_tokens": False}
        tokens: list[int] = (await self._client.post("/tokenize", body))["tokens"]
        return tokens

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids.

        Raises:
            InvalidRequestError: an id lies outside the vocabulary.
        """
        text: str = (await self._client.post("/detokenize", {"tokens": list(tokens), "skip_special_tokens": False}))[
            "text"
        ]
        return text

    async def _prompt(self, request: GenerationRequest) -> str | list[int] | ChatPrompt:
        """What to send: text or tokens, or a chat where SGLang's tool or reasoning parsers must see it."""
        prompt = request.prompt
        if isinstance(prompt, str):
            return prompt
        if not isinstance(prompt, ChatPrompt):
            return list(prompt)
        parsed = (prompt.tools or self._reasoning_parser) and not prompt.answer_prefix
        return prompt if parsed else await self.tokenize(prompt)

    async def _prediction(self, request: GenerationRequest) -> list[int] | None:
        if request.prediction is None or not request.speculation:
            return None
        return await self._plain_tokens(request.prediction)

    def _binding(self, request: GenerationRequest, prediction: list[int] | None, warnings: list[str]) -> dict[str, Any]:
        return {
            "edited_path": request.edited_path,
            "prediction": prediction,
            "speculation": request.speculation,
            **self._repositories.params(request, warnings),
        }

    def _refuse_when_down(self) -> None:
        if self._model is None or not self._is_ready():
            failure = self._supervisor.failure if self._supervisor is not None else None
            raise EngineUnavailableError(failure or "the engine is starting or restarting; retry shortly", 5.0)

    def _is_ready(self) -> bool:
        return self._model is not None and (self._supervisor is None or self._supervisor.ready)


def _unfulfilled(sampling: SamplingParams, settings: Settings) -> list[str]:
    """What the request asks for and this server does not do."""
    if sampling.seed is not None and sampling.temperature > 0 and not settings.sglang.deterministic:
        return ["the seed has no effect: the engine was started without sglang.deterministic"]
    return []


def _name_of(listed: str, settings: Settings) -> str:
    """What clients call the model: for one that was loaded from a folder, the name that the settings gave it."""
    return Path(settings.engine.model).name if Path(listed).is_dir() else listed
