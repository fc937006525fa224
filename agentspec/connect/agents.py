"""Recipes for coding agents, in the format of each one's documentation as of November 2026."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from agentspec.connect.endpoint import KEY_VARIABLE, PLACEHOLDER_KEY
from agentspec.connect.recipe import Client, ConfigFile, Recipe

if TYPE_CHECKING:
    from agentspec.connect.endpoint import Endpoint


def _shell_key(endpoint: Endpoint) -> str:
    """A shell word that is the key to send."""
    return f'"${KEY_VARIABLE}"' if endpoint.needs_key else PLACEHOLDER_KEY


def _aider(endpoint: Endpoint) -> Recipe:
    name = f"openai/{endpoint.model}"
    settings: dict[str, Any] = {"model": name, "openai-api-base": endpoint.v1}
    notes: tuple[str, ...] = ()
    if endpoint.needs_key:
        notes = (f"Set OPENAI_API_KEY={_shell_key(endpoint)} in the environment of aider.",)
    else:
        settings["openai-api-key"] = PLACEHOLDER_KEY
    # aider asks litellm's table for limits and prices; it does not ask the server.
    metadata = {
        name: {
            "litellm_provider": "openai",
            "mode": "chat",
            "max_tokens": endpoint.max_output_tokens,
            "max_input_tokens": endpoint.context_length,
            "max_output_tokens": endpoint.max_output_tokens,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
        }
    }
    files = (
        ConfigFile("~/.aider.conf.yml", "yaml", settings),
        ConfigFile("~/.aider.model.metadata.json", "json", metadata),
    )
    return Recipe(files, notes)


def _codex(endpoint: Endpoint) -> Recipe:
    provider: dict[str, Any] = {"name": "agentspec", "base_url": endpoint.v1, "wire_api": "responses"}
    if endpoint.needs_key:
        provider["env_key"] = KEY_VARIABLE
    values = {
        "model": endpoint.model,
        "model_provider": "agentspec",
        "model_context_window": endpoint.context_length,
        "model_providers": {"agentspec": provider},
    }
    return Recipe((ConfigFile("~/.codex/config.toml", "toml", values),), endpoint.key_notes)


def _claude_code(endpoint: Endpoint) -> Recipe:
    # Each of Claude Code's model sizes has a name of its own; all of them are the served model.
    tiers = ("OPUS", "SONNET", "HAIKU")
    env = {
        "ANTHROPIC_BASE_URL": endpoint.root,
        "ANTHROPIC_MODEL": endpoint.model,
        **{f"ANTHROPIC_DEFAULT_{tier}_MODEL": endpoint.model for tier in tiers},
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(endpoint.max_output_tokens),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    values: dict[str, Any] = {"env": env}
    if endpoint.needs_key:
        values["apiKeyHelper"] = f"printenv {KEY_VARIABLE}"
    else:
        env["ANTHROPIC_AUTH_TOKEN"] = PLACEHOLDER_KEY
    return Recipe((ConfigFile("~/.claude/settings.json", "json", values),))


def _goose(endpoint: Endpoint) -> Recipe:
    provider = {
        "name": "agentspec",
        "engine": "openai",
        "display_name": "agentspec",
        "description": "A model served by agentspec",
        "api_key_env": KEY_VARIABLE,
        "base_url": f"{endpoint.v1}/chat/completions",
        "models": [{"name": endpoint.model, "context_limit": endpoint.context_length}],
        "supports_streaming": True,
        "requires_auth": endpoint.needs_key,
    }
    active = {
        "active_provider": "agentspec",
        "providers": {"agentspec": {"enabled": True, "model": endpoint.model, "configured": True}},
    }
    files = (
        ConfigFile("~/.config/goose/custom_providers/agentspec.json", "json", provider),
        ConfigFile("~/.config/goose/config.yaml", "yaml", active),
    )
    return Recipe(files, endpoint.key_notes)


def _openhands(endpoint: Endpoint) -> Recipe:
    text = f"""\
export LLM_MODEL={shlex.quote(f"openai/{endpoint.model}")}
export LLM_BASE_URL={shlex.quote(endpoint.v1)}
export LLM_API_KEY={_shell_key(endpoint)}
openhands --override-with-envs
"""
    return Recipe((ConfigFile("a shell", "sh", text=text),))


def _cline(endpoint: Endpoint) -> Recipe:
    key = _shell_key(endpoint)
    command = f"cline auth -p openai -k {key} -b {shlex.quote(endpoint.v1)} -m {shlex.quote(endpoint.model)}\n"
    notes = (
        "In the extension: Settings | API Provider: OpenAI Compatible, with the same base URL, key and model ID; "
        f"Model Configuration | Context Window Size: {endpoint.context_length}.",
    )
    return Recipe((ConfigFile("a shell, for Cline's command line", "sh", text=command),), notes)


AGENTS = (
    Client("aider", "aider", _aider),
    Client("codex", "Codex CLI", _codex),
    Client("claude-code", "Claude Code", _claude_code),
    Client("goose", "Goose", _goose),
    Client("openhands", "OpenHands", _openhands),
    Client("cline", "Cline", _cline),
)
"""Agents that edit files on their own."""
