"""Types of the fields of everything that is configured or agreed on: bounded numbers, names, digests, frozen models."""

from typing import Annotated, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    model_validator,
)

SMALLEST, LARGEST = 1e-100, 1e100
"""Magnitudes that agreed numbers, what tasks make of them, and broadcast values may have beside 0.

Squares and products of a few of them neither overflow nor vanish, so that no arithmetic fails on some records only.
"""


def _real(value: object) -> object:
    """Accept a number, or a float's hexadecimal form as canonical JSON writes it."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    if isinstance(value, str) and "0x" in value:
        try:
            return float.fromhex(value)
        except OverflowError as error:  # the only one that pydantic does not take for a wrong value
            raise ValueError("is larger than any float") from error
    return value


def _in_range(value: float) -> float:
    if value != 0.0 and not SMALLEST <= abs(value) <= LARGEST:
        raise ValueError(f"must be 0, or {SMALLEST:g} to {LARGEST:g} in size")
    return value


Real = Annotated[
    float,
    BeforeValidator(_real),
    AfterValidator(_in_range),
    PlainSerializer(float.hex, return_type=str, when_used="json"),
    Field(allow_inf_nan=False),
]
"""A float that canonical JSON carries as ``float.hex``: 0, or of a magnitude from :data:`SMALLEST` to :data:`LARGEST`."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?$")]
"""A lower-case identifier of 1 to 64 characters: participants, datasets, studies, columns of a result."""


def _printable(value: str) -> str:
    if not value.isprintable() or value != value.strip():
        raise ValueError("must be one line of printable characters, without spaces around it")
    return value


Sentence = Annotated[str, StringConstraints(min_length=1, max_length=1000), AfterValidator(_printable)]
"""One line of 1 to 1,000 printable characters that people read: no character that steers a terminal or turns text around."""

Words = Annotated[Sentence, BeforeValidator(lambda value: " ".join(value.split()) if isinstance(value, str) else value)]
"""A :data:`Sentence` as somebody writes it: line breaks and runs of spaces become single spaces."""

Hex32 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""32 bytes as 64 hexadecimal digits."""


_NUMBERS = int, float, int | None, float | None


class Frozen(BaseModel):
    """Base of all agreed values: immutable, and an unknown key is an error; true and false are no numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, stated: object) -> object:
        """A truth value in the place of a number, where it would count as 1 or 0, becomes a list, which its field refuses."""
        if not isinstance(stated, dict):
            return stated
        numbers = {name for name, field in cls.model_fields.items() if field.annotation in _NUMBERS}
        return {name: [value] if isinstance(value, bool) and name in numbers else value for name, value in stated.items()}


def stated_model(kind: type) -> type[Frozen] | None:
    """The model in the brackets of a class's base, as ``Model`` in ``class Own(Base[Model])``; None where there is none."""
    for base in vars(kind).get("__orig_bases__", ()):
        for stated in get_args(base):
            if isinstance(stated, type) and issubclass(stated, Frozen):
                return stated
    return None
