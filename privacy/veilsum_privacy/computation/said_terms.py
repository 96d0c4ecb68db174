"""A task's terms as they are said by who traces it: plain values, which :mod:`.terms` reads and holds to its bounds."""

from __future__ import annotations

from typing import Any

from veilsum_privacy.computation.terms import TaskTerms
from veilsum_privacy.mechanism.factors import Entries, Gram, Outer, Products, Term


def terms_to_json(terms: TaskTerms) -> dict[str, Any]:
    """A task's terms as plain values."""
    persons = terms.persons
    return {
        "kind": terms.kind,
        "size": terms.size,
        "clip": float(terms.clip),
        "step_clip": float(terms.step_clip),
        "products": None if terms.products is None else products_to_json(terms.products),
        "persons": None
        if persons is None
        else [persons.person, persons.at_most, [[place.start, place.stop] for place in persons.categories]],
        "flags": [terms.mapped, terms.weighted, terms.steers_sites],
        "site_arrays": list(terms.site_arrays),
        "single_arrays": list(terms.single_arrays),
        "disclosures": list(terms.disclosures),
        "weights": terms.weights,
    }


def products_to_json(products: Products) -> list[Any]:
    """Products as plain values."""
    return [[_term_to_json(term) for term in products.terms], float(products.clip), products.weighted]


def _term_to_json(term: Term) -> list[Any]:
    match term:
        case Outer():
            return ["outer", term.left, term.right, term.bias]
        case Gram():
            return ["gram", term.given, float(term.weight)]
        case Entries():
            return ["entries", term.given, float(term.apart)]
