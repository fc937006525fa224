"""`agentspec status`: the indexes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentspec.cli.console import output, print_json
from agentspec.cli.options import ConfigOption, JsonOption, load_settings
from agentspec.errors import AgentspecError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentspec.index.store import IndexStore


def status(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show every repository index on this machine, and whether its repository has changed since."""
    from agentspec.index.store import list_stores

    settings = load_settings(config)
    rows = [_describe(store, settings.index.max_file_bytes) for store in list_stores(settings.index.directory)]
    if json:
        print_json(rows)
        return
    if not rows:
        output().print(f"no indexes in {settings.index.directory}; run agentspec index REPOSITORY", soft_wrap=True)
        return
    for row in rows:
        for line in _lines(row):
            output().print(line, soft_wrap=True, markup=False)


def _lines(row: dict[str, Any]) -> Iterator[str]:
    yield f"{row['repository']}: {row['state']}"
    if row["generation"] is None:
        return
    yield (
        f"  generation {row['generation']}: {row['files']:,} files, {row['tokens']:,} tokens, "
        f"{row['bytes'] / max(row['tokens'], 1):.2f} bytes per token, segments: {row['segments']}"
    )
    yield f"  tokenizer {row['tokenizer']}"


def _describe(store: IndexStore, max_file_bytes: int) -> dict[str, Any]:
    from agentspec.index.build import is_stale

    try:
        manifest = store.manifest()
        store.current()
    except AgentspecError as error:
        nothing = dict.fromkeys(("generation", "files", "tokens", "bytes", "segments", "tokenizer"))
        return {"repository": store.directory, "store": store.directory, "state": f"unusable: {error}", **nothing}
    try:
        state = "changed since" if is_stale(store, max_file_bytes) else "up to date"
    except NotFoundError:
        state = "repository is gone"
    except AgentspecError as error:
        state = f"cannot be compared: {error}"
    return {
        "repository": manifest.repository,
        "store": store.directory,
        "state": state,
        "generation": manifest.generation,
        "files": manifest.files,
        "tokens": manifest.tokens,
        "bytes": manifest.size_bytes,
        "segments": len(manifest.segments),
        "tokenizer": manifest.tokenizer.name,
        "created": manifest.created,
    }
