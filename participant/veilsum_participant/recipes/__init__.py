"""Queries and schemas for data models that many hospitals share, to adapt; ``veilsum participant recipe`` writes them."""

from importlib.resources import files
from pathlib import Path

from veilsum_node.errors import Misuse
from veilsum_node.identity.files import write_new

RECIPES = {"omop": "OMOP CDM 5.4, in PostgreSQL or as Parquet", "fhir": "FHIR R4: bulk export or Bundles"}


def write_recipe(name: str, directory: Path) -> list[Path]:
    """Write a recipe's files into a directory. Returns their paths.

    Raises:
        Misuse: the recipe does not exist.
        StateError: a file is there already, or cannot be written; none is replaced.
    """
    if name not in RECIPES:
        raise Misuse(f"No recipe is called {name!r}.", f"There are: {', '.join(RECIPES)}.")
    written = []
    for item in sorted((files(__package__) / name).iterdir(), key=lambda item: item.name):
        if item.name.endswith((".sql", ".toml")):
            written.append(directory / item.name)
            write_new(written[-1], item.read_bytes())
    return written
