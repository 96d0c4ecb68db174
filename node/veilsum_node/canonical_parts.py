"""Canonical forms of many objects that have most in common, as what the members of a cohort sign of one sum."""

from collections.abc import Callable, Mapping
from typing import Any

from veilsum_node.canonical import canonical


def canonical_around(value: Mapping[str, Any], *varying: str) -> Callable[..., bytes]:
    """Make the canonical form of an object of which some fields vary, once for all that many have in common.

    Args:
        value: fields by name; what it says of those that vary does not matter.
        varying: their names.

    Returns:
        A function of these fields' values, in this order: the bytes of :func:`canonical` of the object with them.

    Raises:
        Misuse: as :func:`canonical`, of all fields but those that vary; the function raises it of those.
    """
    places = {name: place for place, name in enumerate(varying)}
    texts, order = [b"{"], []
    for name in sorted({**value, **dict.fromkeys(varying)}, key=lambda name: name.encode("utf-16-be")):  # as the standard does
        texts[-1] += (b"" if texts == [b"{"] else b",") + canonical(name) + b":"
        if name in places:
            order.append(places[name])
            texts.append(b"")
        else:
            texts[-1] += canonical(value[name])
    texts[-1] += b"}"

    def filled(*items: Any) -> bytes:
        said = [canonical(items[place]) for place in order]
        return texts[0] + b"".join(item + text for item, text in zip(said, texts[1:], strict=True))

    return filled
