"""Text as TeX shows it, and numbers as people read them."""

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_DIGITS = 16
"""Significant digits of a number as it is shown, of which a float has no more."""

_TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "‘": "`{}", "’": "'{}", "“": "``{}", "”": "''{}", "–": "--{}", "—": "---{}", "‐": "-{}", "⁄": "/",
    "…": r"\dots{}", "†": r"\dag{}", "‡": r"\ddag{}", "§": r"\S{}", "¶": r"\P{}", "£": r"\pounds{}", "©": r"\copyright{}",
    "ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "œ": r"\oe{}", "Œ": r"\OE{}", "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}",
    "Ł": r"\L{}", "ı": r"\i{}", "−": "$-$",
}  # fmt: skip
_TEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"} | {letter: f"${letter}$" for letter in "<>|"}
_MATHEMATICS = (
    "± pm × times ÷ div · cdot ≤ leq ≥ geq ≠ neq ≈ approx ≡ equiv ∞ infty ∝ propto → rightarrow ← leftarrow ↔ "
    "leftrightarrow ∂ partial ∫ int ¬ neg ∈ in ∑ sum ∏ prod ∆ Delta µ mu α alpha β beta γ gamma δ delta ε varepsilon "
    "ζ zeta η eta θ theta ι iota κ kappa λ lambda μ mu ν nu ξ xi π pi ρ rho ς varsigma σ sigma τ tau υ upsilon φ "
    "varphi χ chi ψ psi ω omega Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Υ Upsilon Φ Phi Ψ Psi Ω Omega"
)
_PAIRS = _MATHEMATICS.split()
_TEX |= {sign: rf"$\{name}$" for sign, name in zip(_PAIRS[::2], _PAIRS[1::2], strict=True)}
_TEX |= dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧο", "ABEZHIKMNOPTXo", strict=True))  # which TeX has no commands for

_T1 = {
    "đ": "dj", "Đ": "DJ", "ð": "dh", "Ð": "DH", "þ": "th", "Þ": "TH", "ŋ": "ng", "Ŋ": "NG", "«": "guillemotleft",
    "»": "guillemotright", "‹": "guilsinglleft", "›": "guilsinglright", "„": "quotedblbase", "‚": "quotesinglbase",
}  # fmt: skip
_TS1 = {"€": "texteuro", "¥": "textyen", "¢": "textcent", "‰": "textperthousand", "®": "textregistered", "™": "texttrademark"}
_TS1["°"] = "textdegree"
_TEX |= {sign: f"\\{name}{{}}" for sign, name in (_T1 | _TS1).items()}

_OGONEK = "\u0328"
_ABOVE = dict(zip("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c", "`'^~=u.\"rHv", strict=True))
_ACCENTS = _ABOVE | {"\u0327": "c", "\u0323": "d", "\u0331": "b", "\u0326": "textcommabelow", _OGONEK: "k"}


def tex_table(title: str, head: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]], notes: Sequence[str] = ()) -> str:
    """A ``table`` with ``booktabs`` rules, and above it what it needs of a document.

    Args:
        title: its caption.
        head: of the columns.
        rows: how far each is indented, and its cells.
        notes: below it.
    """
    body = [
        r"\begin{table}", rf"\caption{{{escaped_tex(title)}}}", rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\toprule",
        _escaped_row(head), r"\midrule", *(r"\quad " * indent + _escaped_row(cells) for indent, cells in rows),
        r"\bottomrule", r"\end{tabular}", *(rf"\par\smallskip\footnotesize {escaped_tex(note)}" for note in notes),
        r"\end{table}",
    ]  # fmt: skip
    signs = {*unicodedata.normalize("NFD", "".join([title, *head, *(cell for _, cells in rows for cell in cells), *notes]))}
    needs = [
        r"\usepackage{booktabs}",
        *([r"\usepackage[T1]{fontenc}"] if signs & {*_T1, _OGONEK} else []),
        *([r"\usepackage{textcomp}"] if signs & {*_TS1} else []),
    ]
    lines = [f"% Needs {', '.join(needs)}.", *body]
    if beyond := sorted({sign for line in body for sign in line if not sign.isascii()}):
        some = " ".join(beyond[:20])
        lines.insert(1, f"% pdfLaTeX does not know {some}: take XeLaTeX or LuaLaTeX, and a font that has them.")
    return "\n".join(lines) + "\n"


def _escaped_row(cells: Iterable[str]) -> str:
    """A row; a bracket or star that it begins with would be taken for an option of the command before it."""
    text = " & ".join(map(escaped_tex, cells))
    return (f"{{{text[0]}}}{text[1:]}" if text[:1] in ("[", "*") else text) + r" \\"


def escaped_tex(text: str) -> str:
    """Text on one line, since an empty one would end the paragraph, in signs that pdfLaTeX knows as far as TeX has them.

    Hyphens and quotes stay as they are.
    """
    apart, found = re.sub(r"(?<=([-`'?!,]))(?=[-`',])", "\0", " ".join(text.split())), list[str]()
    signs = unicodedata.normalize("NFC", apart)
    for letter in "".join(sign if sign in _TEX else unicodedata.normalize("NFD", sign) for sign in signs):
        if letter in _ACCENTS and found and found[-1].isascii():
            base = f"\\{found[-1]}" if found[-1] in ("i", "j") and letter in _ABOVE else found[-1]
            found[-1] = f"\\{_ACCENTS[letter]}{{{base}}}"
        else:
            found.append("{}" if letter == "\0" else _tex(letter))
    return unicodedata.normalize("NFC", "".join(found))


def _tex(letter: str) -> str:
    """One sign; itself where TeX has none, and nothing for what nobody sees."""
    if letter in _TEX:
        return _TEX[letter]
    if letter.isascii() and letter.isprintable():
        return letter
    kind, *codes = unicodedata.decomposition(letter).split() or [""]
    if kind.startswith("<"):  # an index, a fraction, a ligature, a wide letter
        parts = "".join(_tex(chr(int(code, 16))) for code in codes)
        over, _, under = parts.partition("/")
        if kind == "<fraction>":  # 1½ is not 11/2
            return rf"$\frac{{{over}}}{{{under}}}$"
        return {"<super>": rf"\textsuperscript{{{parts}}}", "<sub>": rf"\textsubscript{{{parts}}}"}.get(kind, parts)
    return "" if unicodedata.category(letter) in ("Cc", "Cf") else letter


def number_text(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, and all those before its point."""
    whole = len(str(abs(round(value)))) if math.isfinite(value) else 0
    return f"{value:.{max(digits, whole if whole <= MOST_DIGITS else 0)}g}"


def figure_text(figure: Mapping[str, Any], open_end: str) -> str:
    """``61.2 (59.8 to 62.7)``: with as many digits as tell two of the interval's length, four at least.

    Args:
        figure: with ``value``, ``low`` and ``high``, of which an end may be None.
        open_end: what stands for that.
    """
    value, ends = figure["value"], (figure["low"], figure["high"])
    told = [end for end in ends if end is not None]
    reach = [abs(end - value) for end in told if end != value]
    digits = 4
    if reach:
        size = math.floor(math.log10(max(abs(value), *map(abs, told))))
        digits = min(max(digits, size - math.floor(math.log10(max(reach))) + 2), MOST_DIGITS)
    low, high = (open_end if end is None else number_text(end, digits) for end in ends)
    return f"{number_text(value, digits)} ({low} to {high})"
