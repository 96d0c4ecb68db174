"""The few shapes that the plots are made of, as inline SVG; every text and number is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

INK, MUTED, RULE = "#17212b", "#4d5966", "#d3d9df"
SPENT, ALONE, LIMIT, ALARM = "#0b4f6c", "#dfa23a", "#a3480f", "#a3161a"
"""Colours that differ in lightness too: on paper without colour they stay apart."""

_TEXT = 12


def drawing(name: str, title: str, says: str, width: int, height: float, shapes: Sequence[Markup]) -> Markup:
    """A picture that says in words what it shows.

    Args:
        name: unique in the page.
        title, says: its name, and what it shows.
        width, height: in pixels, at which its text has the size of the page's.
        shapes: from back to front.
    """
    head = Markup(
        '<svg viewBox="0 0 {0} {1:g}" width="{0}" height="{1:g}" role="img" aria-labelledby="{2}-title {2}-desc"'
        ' font-size="{3}"><title id="{2}-title">{4}</title><desc id="{2}-desc">{5}</desc>'
    ).format(width, height, name, _TEXT, title, says)
    return head + Markup("").join(shapes) + Markup("</svg>")


def rect(x: float, y: float, width: float, height: float, fill: str, *, edge: str = "none") -> Markup:
    """A filled rectangle."""
    return Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" fill="{}" stroke="{}" stroke-width="0.75"/>'
    ).format(x, y, width, height, fill, edge)


def line(x: float, y: float, to_x: float, to_y: float, colour: str, *, width: float = 1) -> Markup:
    """A straight line."""
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" stroke="{}" stroke-width="{:g}"/>').format(
        x, y, to_x, to_y, colour, width
    )


def stroke(path: str, colour: str, width: float, *, dashes: str = "none") -> Markup:
    """A path that is drawn, not filled."""
    return Markup(
        '<path d="{}" fill="none" stroke="{}" stroke-width="{:g}" stroke-linejoin="round" stroke-dasharray="{}"/>'
    ).format(path, colour, width, dashes)


def area(path: str, colour: str) -> Markup:
    """A path that is filled, faintly."""
    return Markup('<path d="{}" fill="{}" fill-opacity="0.1"/>').format(path, colour)


def hatch(name: str) -> Markup:
    """Defines the pattern ``url(#name)``: stripes, for what is told apart by more than colour."""
    return Markup(
        '<defs><pattern id="{}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="{}"/><rect width="2" height="6" fill="{}"/></pattern></defs>'
    ).format(name, ALONE, INK)


def words(x: float, y: float, text: str, *, anchor: str = "start", colour: str = INK, bold: bool = False) -> Markup:
    """A line of text."""
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}"{}>{}</text>').format(
        x, y, anchor, colour, Markup(' font-weight="600"') if bold else "", text
    )


def halo(x: float, y: float, text: str, colour: str, *, anchor: str = "end") -> Markup:
    """Words over a drawing, kept readable by a white edge."""
    return Markup(
        '<text x="{:.1f}" y="{:.1f}" text-anchor="{}" fill="{}" font-weight="600" stroke="#fff" stroke-width="4"'
        ' stroke-linejoin="round" paint-order="stroke">{}</text>'
    ).format(x, y, anchor, colour, text)
