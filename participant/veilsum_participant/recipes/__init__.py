"""Queries and schemas for data models that many hospitals share, to adapt; ``veilsum participant recipe`` writes them."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from veilsum_node.errors import Misuse
from veilsum_node.identity.files import write_new

RECIPES = {"omop": "OMOP CDM 5.4, in PostgreSQL or as Parquet", "fhir": "FHIR R4: bulk export or Bundles"}

_PARTS = "parts.sql"
"""What a recipe's queries have in common."""

_USE = re.compile(r"^(.*?)@(\w+)((?: \w+=[^\s,]+)*)(,?)$", re.MULTILINE)


def recipe_texts(name: str) -> dict[str, str]:
    """The texts of a recipe's files by name; each query is whole, with the parts that it shares in their places.

    Raises:
        Misuse: the recipe does not exist.
    """
    if name not in RECIPES:
        raise Misuse(f"No recipe is called {name!r}.", f"There are: {', '.join(RECIPES)}.")
    stored = (files(__package__) / name).iterdir()
    texts = {item.name: item.read_text("utf-8") for item in stored if item.name.endswith((".sql", ".toml"))}
    parts = dict(part.split("\n", 1) for part in texts.pop(_PARTS).split("-- @")[1:])

    def whole(text: str) -> str:
        return _USE.sub(put, text)

    def put(use: re.Match[str]) -> str:
        before, part, values, after = use.groups()
        text = parts[part].rstrip("\n")
        for word, value in re.findall(r"(\w+)=(\S+)", values):
            text = text.replace(f"<{word}>", value)
        return before + whole(text).replace("\n", "\n" + " " * (len(before) - len(before.lstrip()))) + after

    return {name: whole(text) for name, text in sorted(texts.items())}


def write_recipe(name: str, directory: Path) -> list[Path]:
    """Write a recipe's files into a directory. Returns their paths.

    Raises:
        Misuse: the recipe does not exist.
        StateError: a file is there already, or cannot be written; none is replaced.
    """
    written = []
    for item, text in recipe_texts(name).items():
        written.append(directory / item)
        write_new(written[-1], text.encode())
    return written
