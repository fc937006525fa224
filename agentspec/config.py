"""All settings of agentspec in one model.

Precedence, highest first: command-line flags (passed as keyword arguments), environment variables
(`AGENTSPEC_ENGINE__MODEL`, two underscores between levels), the YAML file, the defaults below.
"""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, SettingsConfigDict, SettingsError

from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_settings import PydanticBaseSettingsSource

CONFIG_FILE_VARIABLE = "AGENTSPEC_CONFIG"

_file_values: ContextVar[Mapping[str, Any]] = ContextVar("file_values", default=MappingProxyType({}))
"""What the `Settings.load` in progress read from its YAML file; pydantic-settings asks the class, not the call, for
its sources."""


def _user_directory(variable: str, fallback: str) -> Path:
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / fallback) / "agentspec"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ServerSettings(_Section):
    """The HTTP server."""

    host: str = Field(default="127.0.0.1", description="address to listen on; beyond loopback keys are required")
    port: int = Field(default=8642, ge=0, le=65535, description="0 takes a free one")
    api_key_file: Path | None = Field(default=None, description="one bearer key a line; none: no keys asked")
    model_aliases: tuple[str, ...] = Field(
        default=(), description="further names of the served model, with * and ? as wildcards"
    )
    cors_origins: tuple[str, ...] = Field(default=(), description="browser origins allowed; none by default")
    max_body_bytes: int = Field(default=8 * 2**20, gt=0, description="larger request bodies are refused (413)")
    stable_prefix: bool = Field(
        default=True, description="move lines that change with every request behind those that stay"
    )
    keepalive_seconds: float = Field(default=15.0, gt=0, description="SSE comment interval while decoding")
    shutdown_seconds: float = Field(default=10.0, ge=0, description="grace for running requests at shutdown")


class EngineSettings(_Section):
    """The engine and its target model."""

    kind: Literal["local", "sglang"] = Field(default="local", description="embedded, or SGLang for production")
    model: str = Field(default="smollm2-135m-instruct", description="a pulled model, a folder, or a hub id")
    served_name: str | None = Field(default=None, description="name that clients use; default: from the model")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(default="auto", description="auto: a GPU where there is one")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="of weights and KV; auto: what is fastest on the device"
    )
    threads: int | None = Field(default=None, ge=1, description="CPU threads; default: chosen by measurement")
    context_length: int | None = Field(default=None, ge=16, description="default: the model's own")
    max_running: int = Field(default=8, ge=1, description="requests decoded at once")
    max_waiting: int = Field(default=64, ge=0, description="requests queued before 429")
    retained_prefixes: int = Field(default=8, ge=0, description="finished caches kept for prefix reuse")
    kv_tokens: int | None = Field(default=None, ge=64, description="KV slots in all; default: from free memory")
    speculation: bool = Field(default=True, description="false decodes every request plainly")
    draft_head: str = Field(
        default="auto",
        description="EAGLE-3 head: a folder, auto (the one shipped for the model, where it pays) or none",
    )


class SGLangSettings(_Section):
    """The SGLang engine: how it is started, or where one is running already."""

    url: str | None = Field(default=None, description="attach to this running server instead of starting one")
    python: Path | None = Field(default=None, description="interpreter that has SGLang; default: this one")
    draft_model: str | None = Field(default=None, description="EAGLE-3 head, a folder or a hub id; none: model-free")
    draft_steps: int = Field(default=3, ge=1, le=16, description="depth of the EAGLE-3 draft")
    draft_branches: int = Field(default=4, ge=1, le=16, description="branches per step of the EAGLE-3 draft")
    draft_nodes: int = Field(default=16, ge=2, le=256, description="nodes of the EAGLE-3 tree, its root included")
    model_free: bool = Field(default=True, description="draft from request and repository; false: EAGLE-3 alone")
    verify_widths: tuple[int, ...] = Field(default=(1, 8, 16, 32, 64), description="tree sizes captured on a GPU")
    verify_kernel: Literal["auto", "owned", "diagonal", "two_part", "two_part_fa3", "stock"] = Field(
        default="auto", description="of agentspec_flashinfer; auto: by `agentspec kernels tune`, else owned"
    )
    device_verify: Literal["auto", "on", "off"] = Field(
        default="auto", description="accept, compact and merge trees in Triton; auto: on CUDA devices"
    )
    deterministic: bool = Field(default=False, description="SGLang's seeded sampling; a seed then fixes the text")
    tensor_parallel: int = Field(default=1, ge=1, description="GPUs that share the model")
    arguments: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="more flags of sglang.launch_server, by name without the leading dashes"
    )
    start_seconds: float = Field(default=900.0, gt=0, description="until the server must be ready")
    restarts: int = Field(default=5, ge=0, description="restarts in a row before giving up")


class DraftingSettings(_Section):
    """Bounds of the draft tree; the engine's cost curve decides within them."""

    max_nodes: int = Field(default=64, ge=1, le=1024, description="most drafted nodes of one step")
    max_depth: int = Field(default=256, ge=1, le=1024, description="deepest draft")
    min_path_prob: float = Field(
        default=0.01, gt=0, lt=1, description="nodes less likely to be reached than this are not drafted"
    )


class IndexSettings(_Section):
    """The repository index."""

    directory: Path = Field(
        default_factory=lambda: _user_directory("XDG_DATA_HOME", ".local/share") / "index",
        description="where index stores live",
    )
    allowed_roots: tuple[Path, ...] = Field(
        default=(), description="repositories may be registered over HTTP only below these folders"
    )
    max_file_bytes: int = Field(default=1_000_000, gt=0, description="larger files are skipped")


class Settings(BaseSettings):
    """Every setting; see docs/configuration.md for the list with defaults."""

    model_config = SettingsConfigDict(env_prefix="AGENTSPEC_", env_nested_delimiter="__", extra="forbid", frozen=True)

    server: ServerSettings = ServerSettings()
    engine: EngineSettings = EngineSettings()
    sglang: SGLangSettings = Field(default_factory=SGLangSettings)
    drafting: DraftingSettings = DraftingSettings()
    index: IndexSettings = Field(default_factory=IndexSettings)
    cache_directory: Path = Field(
        default_factory=lambda: _user_directory("XDG_CACHE_HOME", ".cache"),
        description="converted models and measurements",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The sources in order of precedence; see the module's docstring."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, dict(_file_values.get()))

    @classmethod
    def load(cls, file: Path | None = None, **overrides: Any) -> Settings:
        """Read settings from a YAML file (or the one `AGENTSPEC_CONFIG` names), environment and overrides.

        Args:
            file: YAML file; None: the environment's, or none at all.
            overrides: nested values that win over everything, e.g. `engine={"model": "..."}`.

        Raises:
            InvalidRequestError: the file cannot be read or a value does not fit; the message names each one.
        """
        if file is None and CONFIG_FILE_VARIABLE in os.environ:
            file = Path(os.environ[CONFIG_FILE_VARIABLE])
        token = _file_values.set({} if file is None else _read_mapping(file))
        try:
            return cls(**overrides)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors())
            raise InvalidRequestError(f"settings do not fit: {problems}") from error
        except SettingsError as error:
            raise InvalidRequestError(f"settings in the environment cannot be read: {error}") from error
        finally:
            _file_values.reset(token)


def _read_mapping(file: Path) -> Mapping[str, Any]:
    """The top-level mapping of a YAML file; empty for an empty file.

    Raises:
        InvalidRequestError: the file is missing, unreadable, not YAML, or holds something else.
    """
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidRequestError(f"settings file {file} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"settings file {file} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise InvalidRequestError(f"settings file {file} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidRequestError(
            f"settings file {file} holds a {type(content).__name__}; expected sections such as 'engine:' with values"
        )
    return content
