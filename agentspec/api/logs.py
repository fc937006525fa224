"""Structured logs of a server process."""

from __future__ import annotations

import sys

import structlog


def configure_logs(as_json: bool) -> None:
    """Send agentspec's log events to stderr, one a line: as JSON, or for people to read.

    Tracebacks are plain: renderings with local variables would write prompts and keys into the log.
    """
    last: list[structlog.types.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
