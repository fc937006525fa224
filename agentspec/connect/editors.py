"""Recipes for editors and their plugins, in the format of each one's documentation as of November 2026."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentspec.connect.endpoint import KEY_VARIABLE, PLACEHOLDER_KEY
from agentspec.connect.recipe import Client, ConfigFile, Recipe

if TYPE_CHECKING:
    from agentspec.connect.endpoint import Endpoint

INLINE_TOKENS = 128
"""Longest inline completion; more than a few lines are rarely read."""


def _continue(endpoint: Endpoint) -> Recipe:
    key = f"${{{{ secrets.{KEY_VARIABLE} }}}}" if endpoint.needs_key else PLACEHOLDER_KEY
    models: list[dict[str, Any]] = [
        {
            "name": "agentspec",
            "provider": "openai",
            "model": endpoint.model,
            "apiBase": endpoint.v1,
            "apiKey": key,
            "roles": ["chat", "edit", "apply"],
            "defaultCompletionOptions": {
                "contextLength": endpoint.context_length,
                "maxTokens": endpoint.max_output_tokens,
            },
        }
    ]
    if endpoint.inline:
        # Of Continue's providers, Mistral's leaves the fill-in-the-middle template to the server.
        models.append(
            {
                "name": "agentspec inline",
                "provider": "mistral",
                "model": endpoint.model,
                "apiBase": f"{endpoint.v1}/",
                "apiKey": key,
                "roles": ["autocomplete"],
            }
        )
    notes = (f"Put {KEY_VARIABLE}=<key> into ~/.continue/.env.",) if endpoint.needs_key else ()
    defaults = {"name": "Local", "version": "1.0.0", "schema": "v1"}
    return Recipe((ConfigFile("~/.continue/config.yaml", "yaml", {"models": models}, defaults),), notes)


def _zed(endpoint: Endpoint) -> Recipe:
    model = {
        "name": endpoint.model,
        "display_name": f"{endpoint.model} (agentspec)",
        "max_tokens": endpoint.context_length,
        "max_output_tokens": endpoint.max_output_tokens,
        "capabilities": {"tools": True, "images": False, "parallel_tool_calls": False, "prompt_cache_key": False},
    }
    values: dict[str, Any] = {
        "language_models": {
            "openai_compatible": {"agentspec": {"api_url": endpoint.v1, "available_models": [model]}},
        }
    }
    if endpoint.inline:
        values["edit_predictions"] = {
            "provider": "open_ai_compatible_api",
            "open_ai_compatible_api": {
                "api_url": f"{endpoint.v1}/completions",
                "model": endpoint.model,
                "prompt_format": "infer",
                "max_output_tokens": INLINE_TOKENS,
            },
        }
    value = "one of the server's keys" if endpoint.needs_key else "any text; Zed lists no provider without a key"
    return Recipe(
        (ConfigFile("~/.config/zed/settings.json", "json", values),),
        (f"Set {KEY_VARIABLE} in the environment of Zed to {value}.",),
    )


def _vscode(endpoint: Endpoint) -> Recipe:
    entry = {
        "name": "agentspec",
        "vendor": "customendpoint",
        "apiType": "chat-completions",
        "apiKey": PLACEHOLDER_KEY,
        "models": [
            {
                "id": endpoint.model,
                "name": f"{endpoint.model} (agentspec)",
                "url": f"{endpoint.v1}/chat/completions",
                "toolCalling": True,
                "vision": False,
                "maxInputTokens": endpoint.context_length - endpoint.max_output_tokens,
                "maxOutputTokens": endpoint.max_output_tokens,
            }
        ],
    }
    notes = ["For inline completion and edits install the extension of plugins/vscode."]
    if endpoint.needs_key:
        del entry["apiKey"]
        notes.insert(0, "Enter the server's key in Chat: Manage Language Models; VS Code keeps it out of the file.")
    return Recipe((ConfigFile("~/.config/Code/User/chatLanguageModels.json", "json", [entry]),), tuple(notes))


def _minuet(endpoint: Endpoint) -> Recipe:
    # minuet wants the name of a variable that is not empty; TERM always is one.
    variable = KEY_VARIABLE if endpoint.needs_key else "TERM"
    text = f"""\
require('minuet').setup {{
  provider = 'openai_fim_compatible',
  n_completions = 1,
  provider_options = {{
    openai_fim_compatible = {{
      name = 'agentspec',
      api_key = '{variable}',
      end_point = '{endpoint.v1}/completions',
      model = '{endpoint.model}',
      optional = {{ max_tokens = {INLINE_TOKENS}, temperature = 0 }},
    }},
  }},
}}
"""
    return Recipe((ConfigFile("~/.config/nvim/init.lua", "lua", text=text),), endpoint.key_notes)


def _llama_vim(endpoint: Endpoint) -> Recipe:
    key = f"${KEY_VARIABLE}" if endpoint.needs_key else "''"
    text = f"""\
" before the plugin is loaded
let g:llama_config = {{
    \\ 'endpoint_fim':  '{endpoint.root}/infill',
    \\ 'endpoint_inst': '{endpoint.v1}/chat/completions',
    \\ 'model_inst':    '{endpoint.model}',
    \\ 'api_key':       {key},
    \\ }}
"""
    return Recipe((ConfigFile("~/.vimrc", "vim", text=text),), endpoint.key_notes)


def _jetbrains(endpoint: Endpoint) -> Recipe:
    key = "one of the server's keys" if endpoint.needs_key else PLACEHOLDER_KEY
    text = f"""\
Settings | Tools | AI Assistant | Providers & API keys | Third-party AI providers
  Provider      OpenAI-compatible
  URL           {endpoint.v1}
  API key       {key}
  Tool calling  on
Test Connection, then choose {endpoint.model} under Models Assignment.
"""
    return Recipe((ConfigFile("the settings dialog", "text", text=text),))


EDITORS = (
    Client("continue", "Continue", _continue),
    Client("zed", "Zed", _zed),
    Client("vscode", "VS Code's chat", _vscode),
    Client("minuet", "minuet-ai.nvim", _minuet),
    Client("llama.vim", "llama.vim", _llama_vim),
    Client("jetbrains", "JetBrains AI Assistant", _jetbrains),
)
"""Editors and plugins of editors."""
