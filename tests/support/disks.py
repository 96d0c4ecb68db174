"""Real disks for tests: a small ext4 file system in a mount namespace of its own, filled up, failing or read only on demand.

Nothing of it outlives the test's process and what that started.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.tools import give_up

TOOLS = {"mount": "util-linux", "mkfs.ext4": "e2fsprogs"}
BALLAST = ".ballast"

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_MOUNTS, _OWN_FS = 0x20000, 0x200  # CLONE_NEWNS, CLONE_FS
_PRIVATE = 0x44000  # MS_REC | MS_PRIVATE
_SHUT_DOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN: from here on every access fails with EIO
_NOT_FLUSHED = 2


def need_root(*tools: str, why: str) -> None:
    """Skip the test, or fail it where tools are demanded, unless this is root and the programs are there."""
    missing = [f"{tool} ({TOOLS.get(tool, tool)})" for tool in tools if shutil.which(tool) is None]
    reason = f"needs {', '.join(missing)} {why}" if missing else "" if os.geteuid() == 0 else f"needs root {why}"
    if reason:
        give_up(reason)


class Namespace:
    """A mount namespace in which the calling thread is, and what it starts; use :func:`mount_namespace`."""

    def run(self, *words: str) -> None:
        """Run a command to its end."""
        done = subprocess.run(words, capture_output=True, text=True, timeout=240)
        allowed = (0, 1) if words[0] == "fsck.ext4" else (0,)  # 1: it repaired something
        assert done.returncode in allowed, f"{words}: {done.stderr}"


class Disk:
    """A file system mounted over an empty directory.

    Args:
        image: file to make it in.
        place: the directory.
        megabytes: its size.
    """

    def __init__(self, namespace: Namespace, image: Path, place: Path, megabytes: int = 96) -> None:
        self._namespace, self._image, self._place = namespace, image, place
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image)]
        subprocess.run(make, check=True, capture_output=True, timeout=240)
        self.mount()

    @property
    def root(self) -> Path:
        """The directory."""
        return self._place

    def mount(self, *options: str) -> None:
        """Mount it."""
        chosen = ",".join(("loop", "errors=remount-ro", *options))
        self._namespace.run("mount", "-o", chosen, str(self._image), str(self._place))

    def fill(self, leave: int = 0) -> None:
        """Take all its room but ``leave`` bytes."""
        stat = os.statvfs(self.root)
        with (self.root / BALLAST).open("ab") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), file.tell(), max(1, stat.f_bavail * stat.f_frsize - leave - (64 << 10)))
        if not leave:
            with (self.root / BALLAST).open("ab") as file, contextlib.suppress(OSError):
                while True:
                    os.write(file.fileno(), bytes(4096))
            with (self.root / f"{BALLAST}-").open("ab") as file, contextlib.suppress(OSError):
                os.write(file.fileno(), bytes(1024))

    def free(self) -> None:
        """Give the room back."""
        for path in self.root.glob(f"{BALLAST}*"):
            path.unlink()

    def fail(self, *, read_only: bool) -> None:
        """Let the kernel take it for damaged, so that it can only be read; or let every access fail with EIO."""
        if read_only:
            device = os.major(os.stat(self.root).st_dev), os.minor(os.stat(self.root).st_dev)
            name = Path(f"/sys/dev/block/{device[0]}:{device[1]}").resolve().name
            Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("test")
            return
        handle = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, _SHUT_DOWN, struct.pack("I", _NOT_FLUSHED))
        finally:
            os.close(handle)

    def repair(self, *options: str) -> None:
        """As an operator would once nothing runs on it: unmount, check, mount."""
        self._namespace.run("umount", str(self._place))
        self._namespace.run("fsck.ext4", "-f", "-y", str(self._image))
        self.mount(*options)


@contextmanager
def mount_namespace() -> Iterator[Namespace]:
    """Let this thread, and what it starts, see mounts that nobody else sees; skips the test where that is not permitted."""
    need_root(*TOOLS, why="to mount a small disk for a test")
    former, directory = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY), Path.cwd()
    try:
        if _LIBC.unshare(_NEW_MOUNTS) or _LIBC.mount(b"none", b"/", None, _PRIVATE, None):
            give_up("mount namespaces are not permitted here")
        yield Namespace()
    finally:
        _LIBC.unshare(_OWN_FS)  # threads that were started meanwhile stay behind
        assert not _LIBC.setns(former, _NEW_MOUNTS), os.strerror(ctypes.get_errno())
        os.chdir(directory)
        os.close(former)


def limit_files(pid: int, size: int | None) -> None:
    """Let every write of a process beyond so many bytes of a file fail (EFBIG); None lifts it."""
    import resource

    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))


def python(*words: str) -> list[str]:
    """This interpreter's command line."""
    return [sys.executable, *words]
