"""Draft a schema of OMOP's standardised vocabularies: the file CONCEPT.csv of a download from OHDSI's Athena.

Vocabularies hold no records. What is drafted is what a query may name its columns and their values; bounds stay open.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from veilsum_node.config import did_you_mean
from veilsum_node.errors import DataError
from veilsum_node.phrases import unreadable
from veilsum_participant.drafting.draft import MAX_CATEGORIES, Drafted, SchemaDraft, checked_draft

FILE = "CONCEPT.csv"
_HEADINGS = (
    *("concept_id", "concept_name", "domain_id", "vocabulary_id", "concept_class_id", "standard_concept", "concept_code"),
    *("valid_start_date", "valid_end_date", "invalid_reason"),
)
_NUMBERS = ("Measurement",)
"""Domains whose concepts have a value; of others a record has one or has not."""

_LONGEST = 64
"""Characters of a column that is named after a concept."""


@dataclass(frozen=True)
class _Concept:
    number: int
    name: str
    domain: str
    origin: str
    standard: bool
    valid: bool


def is_vocabulary(path: Path) -> bool:
    """Whether a path is a folder with the file CONCEPT.csv, or that file."""
    return (path / FILE).is_file() or path.name.upper() == FILE.upper()


def draft_vocabulary(path: Path, domains: Sequence[str], concepts: Sequence[int]) -> SchemaDraft:
    """Draft a category column for each domain, of its valid standard concepts' names; and a column for each concept: of a
    measurement its value, a number, of any other whether a person has it.

    Args:
        path: the folder of a vocabulary, or its CONCEPT.csv.
        domains: such as ``Gender``, as OMOP writes them, in any case of letters.
        concepts: their concept_id.

    Raises:
        DataError: the file cannot be read or is none, or it has no such domain or concept.
    """
    wanted, domains_wanted = set(concepts), {domain.casefold() for domain in domains}
    found: dict[int, _Concept] = {}
    listed: dict[str, list[_Concept]] = {domain: [] for domain in domains_wanted}
    known: dict[str, str] = {}
    for concept in _read(path / FILE if path.is_dir() else path):
        domain = concept.domain.casefold()
        known.setdefault(domain, concept.domain)
        if concept.number in wanted:
            found[concept.number] = concept
        if domain in listed and concept.standard and concept.valid and len(listed[domain]) <= MAX_CATEGORIES:
            listed[domain].append(concept)
    columns: list[Drafted] = []
    left_out: dict[str, str] = {}
    for domain in dict.fromkeys(domains):
        if domain.casefold() not in known:
            raise DataError(f"{path} has no domain {domain!r}.", did_you_mean(domain, sorted(known.values())))
        made = _of_domain(known[domain.casefold()], listed[domain.casefold()])
        if isinstance(made, str):
            left_out[_slug(domain)] = made
        else:
            columns.append(made)
    for number in dict.fromkeys(concepts):
        if number not in found:
            raise DataError(
                f"{path} has no concept {number}.", "Give its concept_id; its vocabulary may not be in the download."
            )
        columns.append(_of_concept(found[number], {column.name for column in columns}))
    return checked_draft(path, columns, left_out)


def _of_domain(domain: str, concepts: Sequence[_Concept]) -> Drafted | str:
    if len(concepts) > MAX_CATEGORIES:
        return f"more than {MAX_CATEGORIES} categories; name concepts of it"
    ordered = sorted(concepts, key=lambda concept: concept.number)
    told = "; ".join(f"{concept.number} = {concept.name}" for concept in ordered)
    return Drafted(_slug(domain), "category", categories=tuple(dict.fromkeys(concept.name for concept in ordered)), note=told)


def _of_concept(concept: _Concept, taken: set[str]) -> Drafted:
    name = _slug(concept.name) or f"concept_{concept.number}"
    if name in taken:
        name = f"{name}_{concept.number}"
    told = f"{concept.number} = {concept.name}, {concept.domain}, {concept.origin}"
    if not concept.valid:
        told += "; no longer valid"
    if not concept.standard:
        told += "; not standard: OMOP keeps records under the concept that it maps to"
    if concept.domain in _NUMBERS:
        return Drafted(name, "number", note=f"{told}; in one unit, which your query chooses")
    return Drafted(name, "category", categories=("no", "yes"), note=told)


def _slug(text: str) -> str:
    """A name that a query can give a column without quotation marks."""
    return re.sub("[^a-z0-9]+", "_", text.lower())[:_LONGEST].strip("_")


def _read(path: Path) -> Iterator[_Concept]:
    """The concepts of a file: cells apart by tabulators, a line each, quotation marks are letters."""
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            headings = file.readline().rstrip("\r\n").split("\t")
            if headings != list(_HEADINGS):
                advice = f"Athena's {FILE} has tabulators between {', '.join(_HEADINGS[:3])} and so on."
                raise DataError(f"{path} is not a vocabulary of OMOP.", advice)
            for line, text in enumerate(file, 2):
                cells = dict(zip(_HEADINGS, text.rstrip("\r\n").split("\t"), strict=False))
                if len(cells) != len(_HEADINGS) or not (cells["concept_id"].isdecimal() and len(cells["concept_id"]) < 20):
                    raise DataError(f"{path}: line {line} is not a concept.", "Download the vocabulary again.")
                yield _concept(cells)
    except (OSError, UnicodeDecodeError) as error:
        why = unreadable(error) if isinstance(error, OSError) else "is not UTF-8"
        raise DataError(f"{path}: {why}.", "Check path and permissions, or download the vocabulary again.") from error


def _concept(cells: Mapping[str, str]) -> _Concept:
    return _Concept(
        int(cells["concept_id"]),
        cells["concept_name"].strip(),
        cells["domain_id"],
        f"{cells['vocabulary_id']} {cells['concept_code']}",
        cells["standard_concept"] == "S",
        not cells["invalid_reason"],
    )
