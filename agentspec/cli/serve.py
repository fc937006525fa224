"""`agentspec serve`: the HTTP server over one engine."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentspec.cli.options import (
    ConfigOption,
    DeviceOption,
    DtypeOption,
    ModelOption,
    ThreadsOption,
    load_settings,
)
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentspec.config import ServerSettings, Settings
    from agentspec.engines.base import Engine


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.", show_default="8642")] = None,
    model: ModelOption = None,
    engine: Annotated[str | None, typer.Option(help="local or sglang.", show_default="local")] = None,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    threads: ThreadsOption = None,
    speculation: Annotated[
        bool | None, typer.Option(help="Draft from the request and the repository.", show_default="on")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Bearer keys, one a line; without it nobody is asked.", show_default=False)
    ] = None,
    allowed_roots: Annotated[
        list[Path] | None,
        typer.Option("--allow-root", help="Clients may register repositories below it; may be repeated."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine although no keys are asked for.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Serve a model over OpenAI-compatible HTTP until SIGINT or SIGTERM; running requests are finished first."""
    settings = load_settings(
        config,
        server={"host": host, "port": port, "api_key_file": api_key_file},
        engine={
            "kind": engine,
            "model": model,
            "device": device,
            "dtype": dtype,
            "threads": threads,
            "speculation": speculation,
        },
        index={"allowed_roots": allowed_roots},
    )
    if not insecure:
        _require_keys_beyond_loopback(settings.server)
    listener = _bind(settings.server)
    from agentspec.api.logs import configure_logs
    from agentspec.cli.ready_model import ready_model

    configure_logs(as_json=not sys.stderr.isatty())
    with listener:
        asyncio.run(_serve(settings, ready_model(settings), listener))


def _require_keys_beyond_loopback(server: ServerSettings) -> None:
    try:
        local = server.host == "localhost" or ipaddress.ip_address(server.host).is_loopback
    except ValueError:
        local = False
    if not local and server.api_key_file is None:
        raise InvalidRequestError(
            f"{server.host} can be reached from other machines and no keys are asked for; set server.api_key_file, "
            "or say --insecure if that is meant"
        )


def _bind(server: ServerSettings) -> socket.socket:
    """Take the port before a model is loaded for nothing; listening begins when the model is ready."""
    listener = socket.socket(socket.AF_INET6 if ":" in server.host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((server.host, server.port))
    except OSError as error:
        listener.close()
        raise InvalidRequestError(
            f"cannot listen on {server.host} port {server.port}: {error.strerror or error}; choose another with --port"
        ) from error
    return listener


async def _serve(settings: Settings, model: Path, listener: socket.socket) -> None:
    import uvicorn

    from agentspec.api.app import create_app
    from agentspec.api.indexing import StoreIndexer
    from agentspec.api.repositories import RepositoryRegistry
    from agentspec.engines.factory import create_engine

    repositories = RepositoryRegistry(settings.index.allowed_roots, StoreIndexer(str(model), settings.index))
    engine = create_engine(settings, model, repositories)
    app = create_app(engine, settings, repositories)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=max(1, round(settings.server.shutdown_seconds)),
        )
    )
    try:
        if await _started(engine):
            # uvicorn takes the signals over while it serves; until then, and when it hands them on, this is enough.
            _on_stop_signal(lambda: setattr(server, "should_exit", True))
            _announce(settings, engine, listener)
            await server.serve(sockets=[listener])
    finally:
        await engine.stop()


async def _started(engine: Engine) -> bool:
    """Start the engine; False when a signal came first."""
    starting = asyncio.ensure_future(engine.start())
    _on_stop_signal(starting.cancel)
    try:
        await starting
    except asyncio.CancelledError:
        return False
    return True


def _on_stop_signal(action: Callable[[], Any]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, action)


def _announce(settings: Settings, engine: Engine, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    print(
        f"{engine.model.id} ({settings.engine.kind} engine, {engine.model.context_length:,} tokens of context) "
        f"at http://{shown}:{port}/v1",
        flush=True,
    )
