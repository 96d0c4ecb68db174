"""Load a TOML file into a validated model and say everything that is wrong with it at once.

Serves every configuration of the project: schemas, studies, participants, coordinators. It does not resolve paths inside a
file or read the environment (:mod:`veilsum_node.overrides` does); a model's own validators do what is particular to it.
"""

import difflib
import re
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Hex32, Name
from veilsum_node.phrases import unreadable

MAX_CONFIGURATION_BYTES = 1 << 22
"""Largest configuration file that is parsed, in bytes."""

_ALIKE = 0.75  # share of letters in common: a slip of a finger or of spelling has it, "rounds" and "records" have .62

ModelT = TypeVar("ModelT", bound=BaseModel)

_FORMS = {
    get_args(Name)[1].pattern: "must be 1 to 64 lower-case letters, digits, dots, hyphens or underscores, "
    "with a letter or digit at both ends",
    get_args(Hex32)[1].pattern: "must be 64 hexadecimal digits in lower case",
}
"""What a pattern asks for, in words: an operator reads no regular expressions."""


_OURS = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a text",
    "a valid boolean": "true or false",
}


def plain_words(message: str) -> str:
    """What pydantic, and typer with it, says of a value, in the words of this product."""
    message = message.removeprefix("Value error, ")
    theirs = re.match(r"(?:Input|String|List|Tuple|Set|Frozenset|Dictionary|Bytes|Value) should (?=be |have )", message)
    if theirs is None:
        return message
    said = message[theirs.end() :].partition(", unable")[0].partition(", got")[0].replace(" after validation", "")
    for word, ours in _OURS.items():
        said = said.replace(word, ours)
    return f"Must {said}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that resembles ``name`` most, or that alone begins with it; None when none comes near."""
    by_lower = {item.lower(): item for item in known}
    begun = [item for item in by_lower if len(name) > 2 and item.startswith(name.lower())]
    if len(begun) == 1:
        return by_lower[begun[0]]
    found = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=_ALIKE)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Advice for an unknown ``name``: the nearest known one, or all of them (the first 20)."""
    names = sorted(known)
    close = nearest(name, names)
    if close is not None:
        return f"Did you mean {close!r}?"
    return f"Known: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}." if names else ""


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        ConfigurationError: missing, unreadable, too large, not UTF-8, or not TOML; the message names the file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIGURATION_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} does not exist.", "Check the path.") from error
    except OSError as error:
        raise ConfigurationError(f"{path} {unreadable(error)}.", "Name the TOML file, and check its permissions.") from error
    if len(data) > MAX_CONFIGURATION_BYTES:
        raise ConfigurationError(f"{path} is larger than {MAX_CONFIGURATION_BYTES} bytes.", "Is this a configuration file?")
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text.", "Save the file as UTF-8.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is none of TOML's own errors
        raise ConfigurationError(
            f"{path} is not valid TOML: {error}.", "Strings need quotes, table names [brackets]; a key or table stands once."
        ) from error


def load_toml(path: Path, model: type[ModelT]) -> ModelT:
    """Read ``path`` and validate it as ``model``.

    Raises:
        ConfigurationError: the file cannot be read, or its content is not a valid ``model``; the message lists every
            problem with its key, and for an unknown key the nearest known one.
    """
    return validate(read_toml(path), model, source=str(path))


def located(config: ModelT, file: Path) -> ModelT:
    """A configuration with each of its paths, however deep, taken from the directory of the file that it was read from."""
    base = file.resolve().parent

    def moved(value: Any) -> Any:
        if isinstance(value, Path):
            return base / value
        if isinstance(value, dict):
            return {key: moved(item) for key, item in value.items()}
        if isinstance(value, BaseModel):
            fields = ((name, getattr(value, name)) for name in type(value).model_fields)
            return value.model_copy(update={name: new for name, old in fields if (new := moved(old)) is not old})
        return value

    found: ModelT = moved(config)
    return found


def validate(
    value: Mapping[str, Any], model: type[ModelT], *, source: str, variables: Mapping[tuple[str, ...], str] | None = None
) -> ModelT:
    """Validate parsed configuration as ``model``; ``source`` names where it came from, ``variables`` who else set a key.

    Raises:
        ConfigurationError: as :func:`load_toml`.
    """
    refuse_zeros(value, source)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems = explain(error, model, variables)
        text = "".join(f"\n  {problem}" for problem in problems)
        what = "has a problem" if len(problems) == 1 else f"has {len(problems)} problems"
        raise ConfigurationError(f"{source} {what}:{text}") from error


_OF_RECORDS = ("columns", "missing")


def refuse_zeros(value: Mapping[str, Any], source: str) -> None:
    """Refuse a text with the character U+0000: no path or address holds it, and a file so called cannot even be looked for.
    What records hold may have it.

    Raises:
        ConfigurationError: there is one; the message names its key.
    """
    rest: list[tuple[Any, Any]] = [("", value)]  # in a loop: dotted keys nest deeper than calls may
    while rest:
        key, item = rest.pop()
        if isinstance(item, str) and "\0" in item:
            raise ConfigurationError(f"{source}: {key} holds the character U+0000.", "Leave that character out.")
        if isinstance(item, Mapping):
            rest += [(name, each) for name, each in item.items() if name not in _OF_RECORDS]
        elif isinstance(item, list | tuple):
            rest += [(key, each) for each in item]


def explain(
    error: ValidationError, model: type[BaseModel], variables: Mapping[tuple[str, ...], str] | None = None
) -> list[str]:
    """One line for each problem of ``error``: key, what is wrong, and the nearest known key where the key is unknown.

    Args:
        variables: the environment variable that set a key, which then stands before it.
    """
    said: dict[str, list[str]] = {}
    items = error.errors(include_url=False, include_input=False)
    for item in items:
        if item["type"] == "too_short" and any(
            other["loc"][: len(item["loc"])] == item["loc"] != other["loc"] for other in items
        ):
            continue  # the list is short only because its items are invalid, which is said already
        places = list(_walk(model, item["loc"]))
        key = _key(item["loc"], places, literal=item["type"] in ("extra_forbidden", "missing"))
        if variable := _variable(item["loc"], variables or {}):
            key = f"{variable} ({key})"
        if item["type"] == "extra_forbidden":
            known = {name for candidate in places[-1] for name in _fields(candidate)} if places else set()
            told = f"unknown key. {did_you_mean(str(item['loc'][-1]), known)}".rstrip()
        elif item["type"] == "missing":
            told = "is missing."
        elif item["type"] == "string_pattern_mismatch":
            told = f"{_FORMS.get(item['ctx']['pattern'], 'does not have the form that docs/files.md says for this key')}."
        elif item["type"] in ("tuple_type", "list_type"):
            told = "must be a list, in [brackets]."
        elif item["type"] in ("model_type", "model_attributes_type", "dict_type", "mapping_type"):
            inside = _walked(places, item["loc"])
            keys = list(dict.fromkeys(name for candidate in inside for name in _fields(candidate)))
            named = f" with the keys {', '.join(keys[:20])}{', ...' if len(keys) > 20 else ''}" if keys else ""
            told = f"must be a table (in Python, a dict){named}." if key else f"Must be a table{named}."
        elif item["type"] in ("union_tag_not_found", "union_tag_invalid"):
            tag = str(item["ctx"]["discriminator"]).strip("'")
            tags = str(item["ctx"].get("expected_tags") or _tags(_walked(places, item["loc"]), tag))
            wrong = "is missing" if item["type"] == "union_tag_not_found" else "is none of those that there are"
            key, told = f"{key}.{tag}", f"{wrong}. Known: {tags.replace(chr(39), '')}."
        else:
            message = plain_words(item["msg"])
            told = (message[:1].lower() if key else message[:1]) + message[1:] + ("" if message.endswith((".", "?")) else ".")
        said.setdefault(key, []).append(told)
    texts = {key: " Or ".join(dict.fromkeys(told)) for key, told in said.items()}  # what each type of a union would want
    return [f"{key}: {text}" if key else text for key, text in texts.items()]


def _variable(location: tuple[int | str, ...], variables: Mapping[tuple[str, ...], str]) -> str:
    """The variable that set the key at a location, or the table around it."""
    for end in range(len(location), 0, -1):
        if (found := variables.get(tuple(str(part) for part in location[:end]))) is not None:
            return found
    return ""


def keys_of(annotation: Any) -> list[str]:
    """Keys of a model, in order; none for anything else."""
    return list(_fields(annotation))


def _fields(annotation: Any) -> dict[str, Any]:
    """Keys of a model with their annotations; empty for anything else."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {field.alias or name: field.annotation for name, field in annotation.model_fields.items()}
    return {}


def alternatives(annotation: Any) -> list[Any]:
    """The types a value may have: members of unions, without ``Annotated``."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return alternatives(get_args(annotation)[0])
    if origin is Union or origin is types.UnionType:
        return [item for member in get_args(annotation) for item in alternatives(member)]
    return [annotation]


def _walk(model: type[BaseModel], location: tuple[int | str, ...]) -> Iterator[list[Any]]:
    """Yield, for each part of a location, the types that the part is looked up in; a union's tag narrows them."""
    candidates: list[Any] = [model]
    for part in location:
        yield candidates
        found = [step(candidate, part) for candidate in candidates]
        inner = [item for annotation in found if annotation is not None for item in alternatives(annotation)]
        candidates = inner or [item for item in candidates if _tagged(item, part)] or candidates


def _walked(places: list[list[Any]], location: tuple[int | str, ...]) -> list[Any]:
    """The types that the value at a location may have."""
    if not places:
        return []
    found = [step(candidate, location[-1]) for candidate in places[-1]]
    return [item for annotation in found if annotation is not None for item in alternatives(annotation)]


def _tags(candidates: list[Any], tag: str) -> str:
    """The values that the literal field ``tag`` has in a union's members."""
    found = [value for candidate in candidates for value in get_args(_fields(candidate).get(tag))]
    return ", ".join(str(value) for value in dict.fromkeys(found))


def step(annotation: Any, part: int | str) -> Any:
    """The annotation of ``part`` inside ``annotation``, or None."""
    if isinstance(part, str) and part in (fields := _fields(annotation)):
        return fields[part]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if not isinstance(origin, type) or not arguments:
        return None
    if isinstance(part, int) and issubclass(origin, Sequence | AbstractSet):
        return arguments[0] if len(arguments) <= part or arguments[-1] is Ellipsis else arguments[part]
    if isinstance(part, str) and issubclass(origin, Mapping):
        return arguments[1]
    return None


def _tagged(annotation: Any, part: int | str) -> bool:
    """Whether a model has a literal field that holds ``part``, or its name: pydantic puts a union's tag into the location."""
    return getattr(annotation, "__name__", "") == part or any(
        get_origin(field) is Literal and part in get_args(field) for field in _fields(annotation).values()
    )


def _key(location: tuple[int | str, ...], places: list[list[Any]], *, literal: bool) -> str:
    """Write a location as a user would: ``columns[3].low``, without tags; ``literal`` keeps the last part as it is."""
    text = ""
    for index, part in enumerate(location):
        if isinstance(part, int):
            text += f"[{part}]"
            continue
        if part == "[key]":  # pydantic's word for the name of a table's entry, which stands before it
            continue
        known = any(step(candidate, part) is not None for candidate in places[index])
        tag = "[" in part or (not known and any(_tagged(candidate, part) for candidate in places[index]))
        if not tag or (literal and index == len(location) - 1):
            text += f".{part}" if text else part
    return text
