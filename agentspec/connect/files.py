"""Configuration files as text: shown, or merged into what a user has."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentspec.connect.jsonc import merge_json
from agentspec.errors import InvalidRequestError

if TYPE_CHECKING:
    from ruamel.yaml import YAML

    from agentspec.connect.recipe import ConfigFile

BACKUP_SUFFIX = ".before-agentspec"


def render(file: ConfigFile) -> str:
    """The file as it is for a user who has none."""
    return merged(file, "") if file.can_be_written else file.text


def merged(file: ConfigFile, existing: str) -> str:
    """The text of a user's file with the recipe's values in it; comments and other values stay.

    Raises:
        InvalidRequestError: `existing` cannot be parsed, or holds something else than the recipe expects.
    """
    match file.format:
        case "json":
            return merge_json(existing, file.values)
        case "yaml":
            return _merge_yaml(existing, file)
        case "toml":
            return _merge_toml(existing, file)
    raise InvalidRequestError(f"{file.path} cannot be merged; paste what is shown")


def write(file: ConfigFile) -> tuple[Path, Path | None]:
    """Merge into the user's file; what was there before stays beside it.

    Returns:
        The file, and the backup: None where there was nothing to keep or nothing changed.

    Raises:
        InvalidRequestError: the file cannot be read, parsed or written; it is unchanged.
    """
    # A dotfile manager's link stays a link.
    path = Path(os.path.realpath(Path(file.path).expanduser()))
    try:
        existing = path.read_text(encoding="utf-8") if path.exists() else ""
        text = merged(file, existing)
        if text == existing:
            return path, None
        backup = _back_up(path) if path.exists() else None
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, text)
    except (InvalidRequestError, UnicodeDecodeError, OSError) as error:
        raise InvalidRequestError(
            f"{path} was left as it is: {error}; paste what connect prints without --write"
        ) from (error)
    return path, backup


def _back_up(path: Path) -> Path:
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    number = 1
    while backup.exists():
        number += 1
        backup = path.with_name(f"{path.name}{BACKUP_SUFFIX}.{number}")
    shutil.copy2(path, backup)
    return backup


def _replace(path: Path, text: str) -> None:
    """Write all of it or nothing."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        if path.exists():
            shutil.copymode(path, temporary)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _merge_yaml(existing: str, file: ConfigFile) -> str:
    from ruamel.yaml import YAML  # noqa: PLC0415 (loaded by the one verb that merges)
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415
    from ruamel.yaml.util import load_yaml_guess_indent  # noqa: PLC0415

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 1 << 16  # long values are not folded
    try:
        document = yaml.load(existing)
        _, sequence, offset = load_yaml_guess_indent(existing) if existing.strip() else (None, None, None)
    except YAMLError as error:
        raise InvalidRequestError(f"it is not valid YAML: {error}") from error
    yaml.indent(sequence=sequence or 4, offset=2 if offset is None else offset)
    return _dump_yaml(yaml, _merge(document, file))


def _dump_yaml(yaml: YAML, document: Any) -> str:
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _merge_toml(existing: str, file: ConfigFile) -> str:
    import tomlkit  # noqa: PLC0415 (loaded by the one verb that merges)
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415

    try:
        document = tomlkit.parse(existing)
    except TOMLKitError as error:
        raise InvalidRequestError(f"it is not valid TOML: {error}") from error
    return tomlkit.dumps(_merge(document, file))


def _merge(document: Any, file: ConfigFile) -> Any:
    """The parsed document with the recipe's values in it, changed in place where there is one."""
    if document is None:
        document = {}
    if not isinstance(document, MutableMapping) or not isinstance(file.values, Mapping):
        raise InvalidRequestError(f"it holds a {type(document).__name__}; expected names with values")
    for name, value in file.defaults.items():
        document.setdefault(name, value)
    _merge_mapping(document, file.values)
    return document


def _merge_mapping(target: MutableMapping[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        current = target.get(name)
        if isinstance(current, MutableMapping) and isinstance(value, Mapping):
            _merge_mapping(current, value)
        elif isinstance(current, list) and isinstance(value, Sequence) and not isinstance(value, str):
            _merge_list(current, value)
        else:
            target[name] = value


def _merge_list(target: list[Any], values: Sequence[Any]) -> None:
    places = {item["name"]: at for at, item in enumerate(target) if isinstance(item, Mapping) and "name" in item}
    for value in values:
        name = value.get("name") if isinstance(value, Mapping) else None
        if name in places:
            target[places[name]] = value
        elif value not in target:
            target.append(value)
