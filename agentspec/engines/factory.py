"""Makes the engine that the settings ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from agentspec.config import Settings
    from agentspec.engines.base import Engine
    from agentspec.engines.local.preparation import RepositorySource


def create_engine(settings: Settings, model: Path, repositories: RepositorySource) -> Engine:
    """An engine that is not started yet. Only the engine that is asked for is imported.

    Args:
        settings: all of them.
        model: folder of the target model, where it is on this machine.
        repositories: where the indexes that requests name come from.
    """
    if settings.engine.kind == "sglang":
        from agentspec.engines.sglang.engine import SGLangEngine  # noqa: PLC0415

        return SGLangEngine(settings, str(model), repositories=repositories)
    from agentspec.engines.local.engine import LocalEngine  # noqa: PLC0415

    return LocalEngine(settings, repositories=repositories)
