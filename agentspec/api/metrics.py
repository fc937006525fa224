"""Prometheus metrics of the HTTP surface and of what the engine did for it."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from agentspec.api.history import History

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from agentspec.engines.base import Chunk, Engine, Receipt

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Histogram bounds for durations, from one verify step on a GPU to a long generation on a laptop."""

TOKENS_PER_STEP = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
"""Histogram bounds for tokens that one verify step yielded."""

ANSWER_KINDS = {
    "apply": "apply",
    "chatcmpl": "chat",
    "cmpl": "completion",
    "edit": "edit",
    "infill": "infill",
    "msg": "message",
    "resp": "response",
}
"""What kind of answer an id names, by its beginning."""

TARGET = "target"
"""Label of tokens that the target drew itself, beside the names of draft sources."""


class Metrics:
    """Every metric of one application, in a registry of its own, and the history that the page shows."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.history = History()
        self.registry.register(_EngineCollector(engine))

        def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"agentspec_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, bounds: tuple[float, ...] = SECONDS) -> Histogram:
            return Histogram(f"agentspec_{name}", text, registry=self.registry, buckets=bounds)

        self.requests = counter("http_requests", "HTTP requests answered", ("method", "route", "status"))
        self.request_seconds = histogram("http_request_seconds", "Time from request to the end of its answer")
        self.finished = counter("choices", "Choices generated to their end", ("finish_reason",))
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens, once per choice")
        self.cached_tokens = counter("cached_prompt_tokens", "Prompt tokens whose KV was reused")
        self.tokens = counter("completion_tokens", "Generated tokens by where they came from", ("source",))
        self.drafted = counter("drafted_tokens", "Draft nodes verified", ("source",))
        self.verify_steps = counter("verify_steps", "Passes of the target after prefill")
        self.draft_seconds = counter("draft_seconds", "Time spent drafting")
        self.verify_seconds = counter("verify_seconds", "Time spent verifying, acceptance included")
        self.prefill_seconds = counter("prefill_seconds", "Time spent in prefill")
        self.queue_seconds = histogram("queue_seconds", "Time a choice waited before its prefill")
        self.first_token_seconds = histogram("time_to_first_token_seconds", "Time from request to the first token")
        self.gap_seconds = histogram("inter_token_seconds", "Time between verify steps of one choice, per token")
        self.tokens_per_step = histogram("tokens_per_step", "Tokens that one verify step yielded", TOKENS_PER_STEP)
        self.disconnects = counter("disconnects", "Clients that left before their answer was complete")
        self.disconnect_seconds = histogram("disconnect_to_free_seconds", "Time from a disconnect to the freed slot")
        self.feedback = counter("feedback", "Answers that clients took over or not", ("kind", "outcome"))

    def client_left(self, seconds_to_free: float) -> None:
        """Count a disconnect and the time until its engine work was gone."""
        self.disconnects.inc()
        self.disconnect_seconds.observe(seconds_to_free)

    def feedback_given(self, answer_id: str, *, accepted: bool) -> None:
        """Count what became of an answer; its kind is told by the beginning of its id."""
        kind = ANSWER_KINDS.get(re.split("[-_]", answer_id)[0], "other")
        self.feedback.labels(kind, "accepted" if accepted else "rejected").inc()

    def timer(self) -> TokenTimer:
        """A clock for the chunks of one engine request, started now."""
        return TokenTimer(self)

    def choice_ended(self, finish_reason: str, receipt: Receipt) -> None:
        """Add the receipt of one finished choice."""
        self.history.add(finish_reason, receipt)
        self.finished.labels(finish_reason).inc()
        self.prompt_tokens.inc(receipt.prompt_tokens)
        self.cached_tokens.inc(receipt.cached_tokens)
        for source, count in receipt.accepted.items():
            self.tokens.labels(source).inc(count)
        for source, count in receipt.drafted.items():
            self.drafted.labels(source).inc(count)
        self.tokens.labels(TARGET).inc(max(0, receipt.completion_tokens - sum(receipt.accepted.values())))
        self.verify_steps.inc(receipt.verify_steps)
        self.draft_seconds.inc(receipt.draft_seconds)
        self.verify_seconds.inc(receipt.verify_seconds)
        self.prefill_seconds.inc(receipt.prefill_seconds)
        self.queue_seconds.observe(receipt.queue_seconds)


class TokenTimer:
    """Times the chunks of one engine request."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._begun = time.perf_counter()
        self._last: dict[int, float] = {}

    def observe(self, chunk: Chunk) -> None:
        """Take note of one chunk as it arrives."""
        if count := len(chunk.token_ids):
            now = time.perf_counter()
            if chunk.index in self._last:
                self._metrics.tokens_per_step.observe(count)
                self._metrics.gap_seconds.observe((now - self._last[chunk.index]) / count)
            else:
                # The prefill yields the first token; no verify step does.
                self._metrics.first_token_seconds.observe(now - self._begun)
            self._last[chunk.index] = now
        if chunk.finish_reason is not None and chunk.receipt is not None:
            self._metrics.choice_ended(chunk.finish_reason, chunk.receipt)


class _EngineCollector(Collector):
    """Reads the engine's state at the moment of a scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        for name, text, value in (
            ("ready", "Whether requests are served now", float(stats.ready)),
            ("running_requests", "Requests being decoded", stats.running),
            ("waiting_requests", "Requests queued", stats.waiting),
            ("kv_tokens_used", "KV slots held, retained prefixes included", stats.kv_tokens_used),
            ("kv_tokens_total", "KV slots there are", stats.kv_tokens_total),
        ):
            yield GaugeMetricFamily(f"agentspec_{name}", text, value=value)
