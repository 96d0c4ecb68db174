"""Pages of the repository, their links and the anchors of their headings, as a forge shows them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"(?<!\\)!?\[(?:[^\]\\]|\\.)*\]\((?P<target>[^()\s]+)\)")


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^(```|~~~).*?^\1\s*$", "", text, flags=re.MULTILINE | re.DOTALL)


def links(text: str) -> list[str]:
    """Targets of a page's links."""
    return [match["target"] for match in _LINK.finditer(re.sub(r"`[^`\n]*`", "`x`", prose(text)))]


def anchors(text: str) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*?)\s*$", prose(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = next(number for number in range(100) if (f"{slug}-{number}" if number else slug) not in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


@cache
def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")
