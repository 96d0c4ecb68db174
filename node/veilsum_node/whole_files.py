"""Files that appear whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path, *, mode: int = 0o600, replace: bool = True) -> Iterator[BinaryIO]:
    """Write a file under another name, which begins with a dot, and rename it once it is durable: at the end of the block.

    Args:
        mode: whatever the umask is.
        replace: whether a file that is there gives way.

    Raises:
        FileExistsError: one is there that is not to give way.
        OSError: it cannot be written.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")  # no longer than systems allow
    kept = False
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            yield file
            file.flush()
            os.fsync(descriptor)
        if not replace:  # fails if somebody made it meanwhile
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
            kept = True
        os.replace(temporary, path)
        kept = False
    finally:
        Path(temporary).unlink(missing_ok=True)
        if kept:
            path.unlink(missing_ok=True)  # the empty one that held the place
