"""Settings from the environment over those of a TOML file, and the effective configuration with where each value came from.

``VEILSUM__KEY`` and ``VEILSUM__TABLE__KEY`` override a key: upper case, with ``_`` for hyphens and dots. A value is written as
in TOML, or else is a text; an empty variable counts as not set. ``VEILSUM__..._FILE`` names a file that holds the value, for
secrets. A name that nearly begins so would change nothing, and is refused. No message of this module holds a value.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar, get_origin

from pydantic import BaseModel, SecretStr, ValidationError

from veilsum_node.config import MAX_CONFIGURATION_BYTES, alternatives, keys_of, nearest, read_toml, step, validate
from veilsum_node.errors import ConfigurationError
from veilsum_node.phrases import unreadable

PREFIX = "VEILSUM__"
_NEARLY = re.compile(r"veilsum(__?)(?=[a-z0-9_]*__)|veilsum__", re.IGNORECASE)  # meant as the prefix: with a table, or doubled
FROM_FILE = "_FILE"

Key = tuple[str, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)


@dataclass(frozen=True)
class Override:
    """One key that the environment sets.

    Attributes:
        key: its path in the configuration.
        variable: what set it.
        value: as it goes into the model; may be a secret.
    """

    key: Key
    variable: str
    value: Any = field(repr=False)


@dataclass(frozen=True)
class Loaded(Generic[ModelT]):
    """A configuration that was read.

    Attributes:
        config: validated; paths as they were written.
        file: the keys of the TOML file.
        overrides: what the environment set, shorter keys first.
    """

    config: ModelT
    file: Mapping[str, Any] = field(repr=False)
    overrides: tuple[Override, ...]

    def source(self, key: Key) -> str:
        """Where a key's value came from: a variable's name, ``file``, or ``default``."""
        for override in reversed(self.overrides):
            if key[: len(override.key)] == override.key:
                return override.variable
        found: Any = self.file
        for part in key:
            if not isinstance(found, Mapping):
                return "file"  # a text stands for a table, as in log = "file"
            if part not in found:
                return "default"
            found = found[part]
        return "file"


def load_settings(
    path: Path, model: type[ModelT], *, environment: Mapping[str, str] | None = None, aliases: Mapping[str, Key] | None = None
) -> Loaded[ModelT]:
    """Read a TOML file, put the environment's values over it and validate the whole.

    Args:
        path: of the file; relative paths of ``_FILE`` variables are taken from its directory.
        environment: variables; the process's own by default.
        aliases: further variables that set a key, such as ``VEILSUM_DATABASE``.

    Raises:
        ConfigurationError: the file or a variable is wrong; the message names file, key or variable, and no value.
    """
    file = read_toml(path)
    variables = os.environ if environment is None else environment
    overrides = _Reader(model, file, path).read(variables, aliases or {})
    merged: dict[str, Any] = dict(file)
    for override in overrides:
        _put(merged, model, override)
    names = {override.key: override.variable for override in overrides}
    source = f"{path} with the environment" if overrides else str(path)
    return Loaded(validate(merged, model, source=source, variables=names), file, overrides)


def set_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Names of the variables that set a key, for the log: a policy or a budget may come from there and not from the file."""
    variables = os.environ if environment is None else environment
    return sorted(name for name, value in variables.items() if name.startswith(PREFIX) and value)


def overridden_tables(path: Path) -> set[str]:
    """Top-level keys of a file and of the environment, in lower case: to tell whose configuration it is, before it is read."""
    named = {name.removeprefix(PREFIX).split("__")[0].lower() for name in os.environ if name.startswith(PREFIX)}
    return set(read_toml(path)) | named


def _require_other(variable: str) -> None:
    """Refuse a variable that was meant to set a key, and would silently not."""
    if (nearly := _NEARLY.match(variable)) is not None:
        meant = PREFIX + variable[nearly.end() :].upper()
        raise ConfigurationError(
            f"The environment variable {variable} sets nothing: its name is misspelt.", f"Did you mean {meant}?"
        )


class _Reader:
    """Finds the keys that variables name."""

    def __init__(self, model: type[BaseModel], file: Mapping[str, Any], path: Path) -> None:
        self._model, self._file, self._path = model, file, path

    def read(self, variables: Mapping[str, str], aliases: Mapping[str, Key]) -> tuple[Override, ...]:
        found: dict[Key, Override] = {}
        for variable in sorted(variables):
            if not variables[variable]:
                continue
            if variable not in aliases and not variable.startswith(PREFIX):
                _require_other(variable)
                continue
            override = self._read_one(variable, variables[variable], aliases.get(variable))
            if (other := found.get(override.key)) is not None:
                raise ConfigurationError(
                    f"{other.variable} and {variable} set the same key {'.'.join(override.key)}.", "Set one of them."
                )
            found[override.key] = override
        return tuple(sorted(found.values(), key=lambda override: (len(override.key), override.key)))

    def _read_one(self, variable: str, text: str, alias: Key | None) -> Override:
        if alias is not None:
            return Override(alias, variable, text)
        parts = variable.removeprefix(PREFIX).split("__")
        key, annotation = self._find(parts)
        if key is not None:
            return Override(key, variable, _parse(text, annotation))
        if variable.endswith(FROM_FILE):
            key, annotation = self._find([*parts[:-1], parts[-1].removesuffix(FROM_FILE)])
            if key is not None:
                return Override(key, variable, _parse(self._content(variable, text), annotation))
        raise ConfigurationError(f"The environment variable {variable} names no key.", self._advice(parts))

    def _find(self, parts: list[str]) -> tuple[Key | None, Any]:
        """The key that a variable's parts name, and its annotation; None if there is none."""
        key: list[str] = []
        annotation: Any = self._model
        there: Any = self._file
        for part in parts:
            name = _name(part, annotation, there)
            following = None if name is None else _step(annotation, name)
            if name is None or following is None:
                return None, None
            key.append(name)
            annotation = following
            there = there.get(name) if isinstance(there, Mapping) else None
        return tuple(key), annotation

    def _advice(self, parts: list[str]) -> str:
        """The nearest known variable; all on the level where the name goes wrong if none is near."""
        for depth in range(len(parts)):
            key, annotation = self._find(parts[:depth]) if depth else ((), self._model)
            if self._find(parts[: depth + 1])[0] is None and key is not None:
                start = PREFIX + "".join(f"{part}__" for part in parts[:depth])
                known = sorted(_upper(name) for name in _known(annotation))
                close = nearest(parts[depth], known)
                if close is not None:
                    return f"Did you mean {start}{close}?"
                return f"Known: {', '.join(start + name for name in known)}." if known else ""
        return ""

    def _content(self, variable: str, name: str) -> str:
        place = self._path.resolve().parent / name
        advice = "Check the path and its permissions."
        try:
            with place.open("rb") as file:
                data = file.read(MAX_CONFIGURATION_BYTES + 1)
            if len(data) > MAX_CONFIGURATION_BYTES:
                raise ConfigurationError(f"{variable}: the file {place} is too large.", advice)
            return data.decode("utf-8").rstrip("\r\n")
        except OSError as error:
            raise ConfigurationError(f"{variable}: the file {place} {unreadable(error)}.", advice) from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{variable}: the file {place} is not UTF-8 text.") from error


def _upper(name: str) -> str:
    return name.upper().replace("-", "_").replace(".", "_")


def _name(part: str, annotation: Any, there: Any) -> str | None:
    """The key on this level that a variable's part stands for: a known or present one, or a new name of a mapping."""
    present = there if isinstance(there, Mapping) else {}
    for name in (*_known(annotation), *present):
        if _upper(name) == part.upper():
            return str(name)
    free = any(_is_mapping(item) for item in alternatives(annotation))
    return part.lower() if free and part else None


def _known(annotation: Any) -> list[str]:
    return [name for item in alternatives(annotation) for name in keys_of(item)]


def _step(annotation: Any, name: str) -> Any:
    found = (step(item, name) for item in alternatives(annotation))
    return next((item for item in found if item is not None), None)


def _parse(text: str, annotation: Any) -> Any:
    """A variable's value: as TOML writes it, or else a text; where only a text will do, it needs no quotes."""
    try:
        value = tomllib.loads(f"value = {text}\n")
    except (ValueError, RecursionError):
        return _parse_table(text, annotation)
    if set(value) != {"value"}:  # the text held a line of its own
        return text
    texts = all(item in (str, Path, SecretStr, type(None)) for item in alternatives(annotation))
    return text if texts and not isinstance(value["value"], str) else value["value"]


def _parse_table(text: str, annotation: Any) -> Any:
    """Lines of ``key = value``, as a file may hold them, where a table is wanted; else the text."""
    tables = any(keys_of(item) or _is_mapping(item) for item in alternatives(annotation))
    try:
        return tomllib.loads(text) if tables else text
    except (ValueError, RecursionError):
        return text


def _is_mapping(annotation: Any) -> bool:
    origin = get_origin(annotation)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _put(tables: dict[str, Any], model: type[BaseModel], override: Override) -> None:
    """Set a key, making tables on the way; a text that stands for a table (``log = "file"``) becomes one."""
    annotation: Any = model
    for part in override.key[:-1]:
        annotation = _step(annotation, part)
        inner = tables.get(part, {})
        if not isinstance(inner, Mapping):
            inner = _as_table(inner, annotation, override)
        tables[part] = dict(inner)
        tables = tables[part]
    tables[override.key[-1]] = override.value


def _as_table(value: Any, annotation: Any, override: Override) -> dict[str, Any]:
    for item in alternatives(annotation):
        if isinstance(item, type) and issubclass(item, BaseModel):
            try:
                return item.model_validate(value).model_dump(exclude_unset=True)
            except ValidationError:
                continue
    place = ".".join(override.key[:-1])
    raise ConfigurationError(
        f"{override.variable} sets a key of {place}, which is not a table in the file.", "Make it a table."
    )


HIDDEN = "(hidden)"


def effective(loaded: Loaded[Any]) -> list[tuple[Key, Any, str]]:
    """Every key with its value and source, in the model's order; secrets are replaced by a word."""
    rows: list[tuple[Key, Any, str]] = []

    def walk(value: Any, key: Key) -> None:
        if isinstance(value, BaseModel):
            for name, info in type(value).model_fields.items():
                walk(getattr(value, name), (*key, info.alias or name))
        elif isinstance(value, Mapping) and value:
            for name, item in value.items():
                walk(item, (*key, str(name)))
        else:
            rows.append((key, HIDDEN if isinstance(value, SecretStr) else value, loaded.source(key)))

    walk(loaded.config, ())
    return rows


__all__ = ["HIDDEN", "Loaded", "Override", "effective", "load_settings", "overridden_tables", "set_variables"]
