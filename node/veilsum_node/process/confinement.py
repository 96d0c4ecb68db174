"""A process gives up, without privilege and for good, what its work does not need: other files, processes, networks, programs.

For code that has been taken over. Three means of the kernel together, none of which needs a privilege:

- A filter of system calls (seccomp), a deny-list, so that a library's new habits do not end the process. Calls that came
  into being after this list are refused as unknown. It refuses other processes (signals, ptrace, their memory and
  descriptors), new ones and programs, the sockets that a role has no use for, and what the kernel offers administrators.
- Landlock, the kernel's own access rules: files by what lies beneath named paths, TCP by port, and from newer kernels on
  signals and abstract sockets. What it does not cover (modes, owners, times, attributes of files) the filter refuses.
- The process is not dumpable, which closes its own memory and descriptors to all others of its user. If it asked the kernel
  to end it with its parent (:func:`~veilsum_node.process.hardening.end_with_parent`), it cannot take that back.

System calls: ``Documentation/userspace-api/seccomp_filter.rst`` and ``landlock.rst`` of Linux. Numbers are of x86-64 and
AArch64; other machines are refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import struct
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from veilsum_node.errors import ConfigurationError

_DUMPABLE, _NO_NEW_PRIVS = 4, 38  # prctl
_FILTER, _TSYNC = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
_FAILS = 0x00050000  # SECCOMP_RET_ERRNO

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables of :mod:`.system_calls`, and the kernel's name of the architecture, which a filter is told."""

_SECCOMP = (317, 277)
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446

# Landlock's rights to files, by the version that brought them
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_DIR, _MAKE_REG, _MAKE_SYM, _REFER, _TRUNCATE, _IOCTL = (1 << bit for bit in (7, 8, 12, 13, 14, 15))
_READ = _READ_FILE | _READ_DIR
_WRITE = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SYM | _TRUNCATE
_OF_FILES = _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL
_BIND, _DIAL = 1, 2
_SCOPES = 3  # abstract sockets, signals

_held: list[int] = []
"""The folder of this process under /proc, kept open: the kernel forgets the rule for one that it let go and made anew."""

_BY_FILES, _BY_PORTS, _BY_SCOPES = 1, 4, 6
"""Versions of Landlock that brought rules for files, for ports of TCP, and for abstract sockets and signals."""


@dataclass(frozen=True)
class Bounds:
    """What a process may still do once it is confined; nothing else.

    Attributes:
        read: files, and folders with all that lies beneath, that it reads, beside Python, its libraries and the system's.
        write: the same for what it writes, makes and removes there.
        network: whether it opens sockets of IP; without it a process has those alone that it was given.
        dial, listen: ports of TCP that it dials and listens on; None for all of them. Kernels since 6.7 enforce it.
        local: whether it dials Unix sockets by their paths, any that its user may: no rule of Landlock is about them.
        forks: whether it may become two processes, which are confined as it is; still none becomes another program.
        alters: whether it may change modes, owners, times and attributes of files, any that its user owns.
        devices: of graphics cards, say; it reads, writes and controls them.
        apart: what it must not reach. Where one lies beneath what it may read or write, by how folders are laid out or by
            where Python imports from, it is not confined but refused: Landlock allows folders whole.
    """

    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    network: bool = False
    dial: tuple[int, ...] | None = ()
    listen: tuple[int, ...] | None = ()
    local: bool = False
    forks: bool = False
    alters: bool = False
    devices: tuple[Path, ...] = ()
    apart: tuple[Path, ...] = ()

    def to_text(self) -> str:
        """As :meth:`from_text` reads it: one line, for a process that is started."""
        return json.dumps({key: value for key, value in asdict(self).items() if value != getattr(Bounds, key)}, default=str)

    @classmethod
    def from_text(cls, text: str) -> Bounds:
        """Bounds that :meth:`to_text` wrote."""
        fields = json.loads(text)
        for name in ("read", "write", "devices", "apart"):
            fields[name] = tuple(map(Path, fields.get(name, ())))
        for name in ("dial", "listen"):
            ports = fields.get(name, ())
            fields[name] = None if ports is None else tuple(ports)
        return cls(**fields)

    def reachable(self) -> list[tuple[Path, Path]]:
        """What of ``apart`` lies beneath something that it may read or write, and beneath what."""
        allowed = [path.resolve() for path in (*system_paths(), *self.read, *self.write)]
        apart = [path.resolve() for path in self.apart]
        return [(path, folder) for path in apart for folder in allowed if path == folder or folder in path.parents]


@dataclass(frozen=True)
class Offered:
    """What the running kernel has to confine a process with.

    Attributes:
        machine: whether system calls are known by number here: x86-64 or AArch64.
        filters: whether it filters system calls.
        landlock: version of Landlock; 0 without it.
    """

    machine: bool
    filters: bool
    landlock: int

    @property
    def enough(self) -> bool:
        """Whether confinement is possible at all: the floor is a filter and Landlock's rules for files."""
        return self.machine and self.filters and self.landlock >= _BY_FILES

    def lacking(self) -> list[str]:
        """What of confinement this kernel cannot do, in words; empty where nothing lacks."""
        if not self.machine:
            return [f"{platform.machine()} is a machine whose system calls are not known here"]
        if not self.filters:
            return ["the kernel filters no system calls (seccomp)"]
        if self.landlock < _BY_FILES:
            return ["the kernel has no Landlock, or it is not switched on"]
        found = []
        if self.landlock < _BY_PORTS:
            found.append("ports of TCP are not restricted (Linux 6.7 does)")
        return found


def offered() -> Offered:
    """Ask the running kernel; changes nothing."""
    machine = sys.platform == "linux" and platform.machine() in MACHINES
    if not machine:
        return Offered(False, False, 0)
    available = ctypes.c_uint32(_FAILS)
    filters = _call(_SECCOMP[_column()], 2, 0, ctypes.byref(available)) == 0  # SECCOMP_GET_ACTION_AVAIL
    return Offered(True, filters, max(0, _call(_LANDLOCK_CREATE, None, 0, 1)))


def confine(bounds: Bounds, keep: Iterable[int] = (), program: bytes | None = None) -> Offered:
    """Confine this process and what it will run, for good.

    To be called before anything else, and before any thread: a module that starts some while it is imported (numpy, torch,
    gRPC) comes after it.

    Args:
        bounds: what it may do.
        keep: descriptors that stay open, beside standard input, output and error.
        program: the filter, where who started this process made it.

    Returns:
        What the kernel had to do it with.

    Raises:
        ConfigurationError: this kernel has less than the floor (:attr:`Offered.enough`), or refuses; or what must be apart
            is not.
        RuntimeError: there is a second thread, which would be left out.
    """
    found = offered()
    if not found.enough:
        raise unconfinable(found)
    if (fault := reach_fault(bounds)) is not None:
        raise fault
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("a process is confined before it starts a thread")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", "/")  # PyTorch asks for a folder, which it does not use
    _close_others({0, 1, 2, *keep})
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_NICE, resource.RLIMIT_RTPRIO):
        resource.setrlimit(limit, (0, 0))
    _prctl(_DUMPABLE, 0)
    _prctl(_NO_NEW_PRIVS, 1)
    _restrict(bounds, found.landlock)
    filter_calls(bounds, program)
    return found


def filter_calls(bounds: Bounds, program: bytes | None = None) -> None:
    """Filter the system calls of this process: the part of :func:`confine` that a child of a confined one takes on by itself,
    to do less than its parent may.

    Raises:
        ConfigurationError: the kernel refuses.
    """
    if program is None:
        from veilsum_node.process.system_calls import packed_filter  # which a guard is spared

        program = packed_filter(bounds, os.getpid())
    kept = ctypes.create_string_buffer(program, len(program))
    packed = struct.pack("@HP", len(program) // 8, ctypes.addressof(kept))
    _done(_call(_SECCOMP[_column()], _FILTER, _TSYNC, packed), "filter its system calls")


def reach_fault(bounds: Bounds) -> ConfigurationError | None:
    """The error where something that must be apart from a process is within its reach."""
    for path, folder in bounds.reachable():
        return ConfigurationError(
            f"{path} would be within reach of a process that must not read it: it lies beneath {folder}.",
            "Keep keys, ledger and records in folders of their own, and none of them beneath what Python imports.",
        )
    return None


def unconfinable(found: Offered) -> ConfigurationError:
    """The error where confinement was asked for and this machine is below the floor."""
    return ConfigurationError(
        f"This machine cannot confine processes: {'; '.join(found.lacking())}.",
        'Linux 5.13 or newer with Landlock can, as most distributions have it. isolation = "none" runs everything in one'
        " process, unconfined.",
    )


def system_paths() -> tuple[Path, ...]:
    """What every Python program reads: itself, its modules, libraries, the names of hosts and time zones."""
    folders = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sysconfig.get_paths().values()}
    modules = {path for path in sys.path if path and Path(path).is_absolute()}
    # the link of a virtual environment leads where its interpreter and libraries are
    folders.add(str(Path(os.path.realpath(sys.executable)).parent.parent))
    return tuple(Path(path) for path in sorted(folders | modules | set(_SYSTEM)))


_SYSTEM = (
    "/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo",
    "/usr/share/ca-certificates", "/usr/share/pki", "/etc/ld.so.cache", "/etc/localtime", "/etc/timezone", "/etc/ssl",
    "/etc/pki", "/etc/ca-certificates", "/etc/hosts", "/etc/host.conf", "/etc/resolv.conf", "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services", "/etc/protocols", "/etc/passwd", "/etc/group", "/etc/mime.types", "/dev/urandom", "/dev/random",
    "/dev/zero", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/filesystems", "/proc/version", "/proc/sys",
    "/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm",
)  # fmt: skip


def _restrict(bounds: Bounds, version: int) -> None:
    handled = (1 << 13) - 1  # of the first version
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
        handled |= right if version >= since else 0
    limits_ports = version >= _BY_PORTS
    ports = (_BIND if bounds.listen is not None else 0) | (_DIAL if bounds.dial is not None else 0)
    fields = [handled, ports if limits_ports else 0, _SCOPES]
    count = 1 if not limits_ports else 2 if version < _BY_SCOPES else 3
    rules = _call(_LANDLOCK_CREATE, struct.pack(f"={count}Q", *fields[:count]), 8 * count, 0)
    _done(rules, "make rules for files")
    try:
        reading = _READ & handled
        for path, rights in (
            *((path, reading) for path in (*system_paths(), *bounds.read)),
            *((path, (_READ | _WRITE) & handled) for path in bounds.write),
            *((path, (_READ | _WRITE_FILE | _IOCTL) & handled) for path in (Path("/dev/null"), *bounds.devices)),
        ):
            _allow_path(rules, path, rights)
        _held.append(os.open("/proc/self/", os.O_PATH | os.O_CLOEXEC))
        _done(_call(_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", reading, _held[-1]), 0), "allow what is its own of /proc")
        if limits_ports:
            for right, allowed in ((_BIND, bounds.listen), (_DIAL, bounds.dial)):
                for port in allowed or ():
                    rule = struct.pack("=QQ", right, port)
                    _done(_call(_LANDLOCK_ADD, rules, 2, rule, 0), f"allow port {port}")
        _done(_call(_LANDLOCK_RESTRICT, rules, 0), "restrict itself to files")
    finally:
        os.close(rules)


def _allow_path(rules: int, path: Path, rights: int) -> None:
    """Allow a path and what lies beneath; one that is not there, or that the process cannot open, has nothing to allow."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            if not os.path.isdir(descriptor):
                rights &= _OF_FILES
            _done(_call(_LANDLOCK_ADD, rules, 1, struct.pack("=Qi", rights, descriptor), 0), f"allow {path}")
        finally:
            os.close(descriptor)


def _close_others(keep: set[int]) -> None:
    for before, after in pairwise(sorted(keep)):
        os.closerange(before + 1, after)
    last = max(keep)
    os.closerange(last + 1, max((int(name) for name in os.listdir("/proc/self/fd")), default=last) + 1)


def _column() -> int:
    return MACHINES[platform.machine()][0]


def _call(number: int, *arguments: object) -> int:
    function = ctypes.CDLL(None, use_errno=True).syscall
    function.restype = ctypes.c_long
    return int(
        function(ctypes.c_long(number), *(ctypes.c_long(item) if isinstance(item, int) else item for item in arguments))
    )


def _prctl(option: int, value: int) -> None:
    _done(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0), "give up privileges")


def _done(result: int, what: str) -> None:
    if result < 0:
        why = os.strerror(ctypes.get_errno())
        raise ConfigurationError(
            f"This process cannot {what}: {why}.",
            'A container\'s own filter may forbid it. isolation = "none" runs everything in one process, unconfined.',
        )
