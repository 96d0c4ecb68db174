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
import errno
import json
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from veilsum_node.errors import ConfigurationError

_END_WITH_PARENT, _DUMPABLE, _NO_NEW_PRIVS = 1, 4, 38  # prctl
_FILTER, _TSYNC = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables below, and the kernel's name of the architecture, which a filter is told."""

_SECCOMP = (317, 277)
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446

LAST_CALL = 462
"""The newest system call that the list below has looked at (mseal, Linux 6.10); later ones are refused as unknown."""

_X32 = 0x40000000  # x86-64's second table of calls

_NONE = -1

FORBIDDEN = {
    # other processes: their memory, descriptors, signals, limits
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "kcmp": (312, 272), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "tkill": (200, 130), "move_pages": (279, 239), "migrate_pages": (256, 238),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setattr": (314, 274), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    # new processes and programs; what threads need is left
    "fork": (57, _NONE), "vfork": (58, _NONE), "execve": (59, 221), "execveat": (322, 281), "uselib": (134, _NONE),
    # other rights, a change of which lets the kernel forget that a process ends with its parent
    "setuid": (105, 146), "setgid": (106, 144), "setreuid": (113, 145), "setregid": (114, 143), "setresuid": (117, 147),
    "setresgid": (119, 149), "setfsuid": (122, 151), "setfsgid": (123, 152), "setgroups": (116, 159), "capset": (126, 91),
    # what processes share by a name
    "shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "semget": (64, 190), "semop": (65, 193),
    "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181), "mq_timedsend": (242, 182),
    "mq_timedreceive": (243, 183), "mq_notify": (244, 184), "mq_getsetattr": (245, 185),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # ways around the filter, and large surfaces
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "bpf": (321, 280),
    "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262), "inotify_add_watch": (254, 27),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264), "lookup_dcookie": (212, 18), "vmsplice": (278, 75),
    "remap_file_pages": (216, 234), "modify_ldt": (154, _NONE), "personality": (135, 92),
    # namespaces, mounts, the machine
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41), "mount": (165, 40),
    "umount2": (166, 39), "mount_setattr": (442, 442), "move_mount": (429, 429), "open_tree": (428, 428),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mknod": (133, _NONE),
    "mknodat": (259, 33), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "nfsservctl": (180, 42), "syslog": (103, 116), "vhangup": (153, 58),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "create_module": (174, _NONE), "query_module": (178, _NONE),
    "get_kernel_syms": (177, _NONE), "iopl": (172, _NONE), "ioperm": (173, _NONE), "sysfs": (139, _NONE),
    "_sysctl": (156, _NONE), "ustat": (136, _NONE), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "clock_adjtime": (305, 266), "adjtimex": (159, 171), "sethostname": (170, 161), "setdomainname": (171, 162),
}  # fmt: skip
"""System calls that no confined process makes, by their numbers on x86-64 and AArch64."""

ALTERING = {
    "chmod": (90, _NONE), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, _NONE),
    "fchown": (93, 55), "fchownat": (260, 54), "lchown": (94, _NONE), "setxattr": (188, 5), "lsetxattr": (189, 6),
    "fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "utime": (132, _NONE), "utimes": (235, _NONE), "futimesat": (261, _NONE), "utimensat": (280, 88), "truncate": (76, 45),
}  # fmt: skip
"""Calls that alter a file that was never opened, of which Landlock knows nothing or did not always: any file of the user's."""

REACHING = {"connect": (42, 203), "bind": (49, 200), "listen": (50, 201)}
"""Calls by which a socket reaches beyond the pair that it was made in."""

ARGUED = {
    "clone": (56, 220), "clone3": (435, 435), "kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240), "prlimit64": (302, 261), "sched_setaffinity": (203, 122), "fcntl": (72, 25),
    "ioctl": (16, 29), "prctl": (157, 167), "socket": (41, 198), "socketpair": (53, 199), "sendto": (44, 206),
    "sendmsg": (46, 211), "sendmmsg": (307, 269),
}  # fmt: skip
"""Calls that are refused by their arguments."""

_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020000  # a thread; any namespace
_OWN_OTHERS = (8, 15, 1026)  # fcntl F_SETOWN, F_SETOWN_EX, which aim signals; F_NOTIFY, which watches a directory
_TERMINAL = (0x5412, 0x541C, 0x8901, 0x8902)  # ioctl TIOCSTI, TIOCLINUX: type; FIOSETOWN, SIOCSPGRP: aim signals
_UNIX, _INET, _INET6 = 1, 2, 10
_STREAM, _DATAGRAM, _PACKETS = 1, 2, 5
_FAST_OPEN = 0x20000000  # MSG_FASTOPEN: data that dials, past the rules for connect(2)
_TYPE = 0xF  # the kind of a socket, beside its flags
_LOW = 0xFFFFFFFF

# classic BPF
_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _AND, _RETURN = 0x20, 0x15, 0x25, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # struct seccomp_data, little-endian

Instruction = tuple[int, int, int, int]
"""Code, jumps if true and if false, operand: ``struct sock_filter``."""

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
    machine = sys.platform == "linux" and platform.machine() in _MACHINES
    if not machine:
        return Offered(False, False, 0)
    available = ctypes.c_uint32(_ERRNO)
    filters = _call(_SECCOMP[_column()], 2, 0, ctypes.byref(available)) == 0  # SECCOMP_GET_ACTION_AVAIL
    return Offered(True, filters, max(0, _call(_LANDLOCK_CREATE, None, 0, 1)))


def confine(bounds: Bounds, keep: Iterable[int] = ()) -> Offered:
    """Confine this process and what it will run, for good.

    To be called before anything else, and before any thread: a module that starts some while it is imported (numpy, torch,
    gRPC) comes after it.

    Args:
        bounds: what it may do.
        keep: descriptors that stay open, beside standard input, output and error.

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
    filter_calls(bounds)
    return found


def filter_calls(bounds: Bounds) -> None:
    """Filter the system calls of this process: the part of :func:`confine` that a child of a confined one takes on by itself,
    to do less than its parent may.

    Raises:
        ConfigurationError: the kernel refuses.
    """
    program = filter_program(bounds, platform.machine(), os.getpid())
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    kept = ctypes.create_string_buffer(packed, len(packed))
    packed = struct.pack("@HP", len(program), ctypes.addressof(kept))
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


def filter_program(bounds: Bounds, machine: str, process: int) -> list[Instruction]:
    """The filter as the kernel takes it: refused calls fail, a foreign table of calls ends the process.

    Args:
        bounds: which sockets there may be, and whether files may be altered.
        machine: ``x86_64`` or ``aarch64``.
        process: this process's number, the only one that it may signal.
    """
    column, architecture = _MACHINES[machine]
    numbers = {name: known[column] for table in (FORBIDDEN, ALTERING, REACHING, ARGUED) for name, known in table.items()}

    def number(name: str) -> int:
        return numbers[name]

    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_JUMP_EQUAL, 1, 0, architecture), _returns(_KILL),
        (_LOAD, 0, 0, _NUMBER), (_JUMP_ABOVE, 0, 1, _X32 - 1), _returns(_KILL),
        (_JUMP_ABOVE, 0, 1, LAST_CALL), _returns(_ERRNO | errno.ENOSYS),
        (_JUMP_EQUAL, 0, 1, number("clone3")), _returns(_ERRNO | errno.ENOSYS),  # flags in memory; all fall back
    ]  # fmt: skip
    allowed = {"fork", "vfork"} if bounds.forks else set()
    allowed |= set(ALTERING) if bounds.alters else set()
    allowed |= {"connect"} if bounds.network or bounds.local else set()
    allowed |= {"bind", "listen"} if bounds.network and bounds.listen != () else set()
    for name in FORBIDDEN | ALTERING | REACHING:
        if name not in allowed and number(name) != _NONE:
            program += [(_JUMP_EQUAL, 0, 1, number(name)), _returns(_ERRNO | errno.EPERM)]
    families = [*([_INET, _INET6] if bounds.network else []), *([_UNIX] if bounds.local else [])]
    argued: dict[str, list[Instruction]] = {
        "clone": _one_of(0, [0], mask=_CLONE_NEW) if bounds.forks else _one_of(0, [_CLONE_THREAD], mask=_CLONE_THREAD),
        "kill": _one_of(0, [process]),
        "tgkill": _one_of(0, [process]),
        "rt_sigqueueinfo": _one_of(0, [process]),
        "rt_tgsigqueueinfo": _one_of(0, [process]),
        "prlimit64": _one_of(0, [0, process]),
        "sched_setaffinity": _one_of(0, [0, process]),
        "fcntl": _none_of(1, _OWN_OTHERS),
        "ioctl": _none_of(1, _TERMINAL),
        "prctl": [*_where(0, _DUMPABLE, _one_of(1, [0])), *_where(0, _END_WITH_PARENT, _one_of(1, [signal.SIGKILL]))],
        # MPTCP and SCTP are other protocols than the one whose ports are restricted
        "socket": [*_one_of(0, families), *_one_of(1, [_STREAM, _DATAGRAM], mask=_TYPE), *_one_of(2, [0, 6, 17])],
        # of a pair's ends, those of datagrams alone can be turned to somebody else
        "sendto": _one_of(3, [0], mask=_FAST_OPEN),
        "sendmsg": _one_of(2, [0], mask=_FAST_OPEN),
        "sendmmsg": _one_of(3, [0], mask=_FAST_OPEN),
        "socketpair": [*_one_of(0, [_UNIX]), *_one_of(1, [_STREAM, _PACKETS], mask=_TYPE)],
    }
    for name, checks in argued.items():
        block = [*checks, _returns(_ALLOW)]
        program += [(_JUMP_EQUAL, 0, len(block), number(name)), *block]
    return [*program, _returns(_ALLOW)]


def _returns(action: int) -> Instruction:
    return _RETURN, 0, 0, action


def _one_of(argument: int, values: Sequence[int], *, mask: int = _LOW) -> list[Instruction]:
    """Go on where an argument's masked low half is one of the values; else the call fails."""
    load = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_AND, 0, 0, mask)]
    tests = [(_JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [*load, *tests, _returns(_ERRNO | errno.EPERM)]


def _where(argument: int, value: int, checks: list[Instruction]) -> list[Instruction]:
    """Checks that are made where an argument's low half has a value."""
    return [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_JUMP_EQUAL, 0, len(checks), value), *checks]


def _none_of(argument: int, values: Sequence[int]) -> list[Instruction]:
    """Go on where an argument's low half is none of the values; else the call fails."""
    found: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * argument)]
    for value in values:
        found += [(_JUMP_EQUAL, 0, 1, value), _returns(_ERRNO | errno.EPERM)]
    return found


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
    return _MACHINES[platform.machine()][0]


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
