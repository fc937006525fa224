"""What a client needs to be told: values for its configuration files, and what a person has to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentspec.connect.endpoint import Endpoint

Format = Literal["json", "yaml", "toml", "lua", "vim", "sh", "text"]
"""How a file is written; the first three can be merged into a file that is there already."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One configuration file of a client.

    Attributes:
        path: where the client looks for it; `~` is the home directory.
        format: how it is written.
        values: what it must hold, for the formats that can be merged. In a list, an item that has the same `name` as
            one that is there replaces it.
        defaults: top-level values that are written only where the file has none.
        text: the whole text, for the other formats.
    """

    path: str
    format: Format
    values: Mapping[str, Any] | Sequence[Mapping[str, Any]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def can_be_written(self) -> bool:
        """Whether it can be merged into what a user has; else it is only shown."""
        return self.format in {"json", "yaml", "toml"}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that connects one client.

    Attributes:
        files: configuration files.
        notes: what files cannot say, one sentence each: variables to set, commands to run.
    """

    files: tuple[ConfigFile, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Client:
    """A program that can use a server.

    Attributes:
        name: as users type it.
        title: as it calls itself.
        recipe: what it needs for an endpoint.
    """

    name: str
    title: str
    recipe: Callable[[Endpoint], Recipe]
