"""The model that a verb works with, fetched first where it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from agentspec.config import Settings


def ready_model(settings: Settings) -> Path:
    """The folder of the model that the settings name; a model that `agentspec models` knows is pulled when missing.

    Raises:
        ModelError: there is no such model, or it cannot be fetched.
    """
    from agentspec.cli.models import pull_with_progress
    from agentspec.engines.local.checkpoint import model_folder
    from agentspec.engines.local.pull import CATALOGUE, pulled

    name = settings.engine.model
    if name in CATALOGUE and name not in pulled(settings.cache_directory):
        return pull_with_progress(name, settings.cache_directory)
    return model_folder(name, settings.cache_directory)
