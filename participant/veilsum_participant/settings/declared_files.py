"""Files of text as who names one on a command line, or in a call, says that it is written."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from veilsum_node.config import validate
from veilsum_node.errors import Misuse
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.forms import Dialect
from veilsum_participant.settings.query import TextFile, origin


def declared(file: Path, keys: Sequence[str]) -> Path | TextFile:
    """A file of text as who names it on the command line says that it is written.

    Args:
        file: the file.
        keys: delimiter, decimal, encoding or compression, each as KEY=VALUE; \\t is a tab.

    Raises:
        Misuse: one is not such a pair, or has another key.
        ConfigurationError: a value is none that its key takes, or the file is none of text.
    """
    if not keys:
        return file
    given = dict[str, str]()
    for pair in keys:
        key, equals, value = pair.partition("=")
        if key not in Dialect.__dataclass_fields__ or not equals:
            told = f"{pair!r} says nothing of how a file is written."
            raise Misuse(told, 'Use KEY=VALUE, as in delimiter=";" or encoding=cp1252.')
        given[key] = value.replace("\\t", "\t")
    found = validate({"path": file, **given}, DatasetConfig, source=f"What is said of {file}")
    return cast(TextFile, origin(found, file.name))
