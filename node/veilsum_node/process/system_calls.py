"""The system calls that no confined process makes, and the filter (seccomp) that says so to the kernel.

Numbers are of x86-64 and AArch64. Who starts a process may make its filter, so that this is not beside what the process holds.
"""

from __future__ import annotations

import errno
import platform
import signal
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from veilsum_node.process.confinement import MACHINES

if TYPE_CHECKING:
    from veilsum_node.process.confinement import Bounds

_END_WITH_PARENT, _DUMPABLE = 1, 4  # prctl

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


def packed_filter(bounds: Bounds, process: int) -> bytes:
    """The filter of a process of this machine, as the kernel reads its instructions."""
    return b"".join(struct.pack("=HBBI", *each) for each in filter_program(bounds, platform.machine(), process))


def filter_program(bounds: Bounds, machine: str, process: int) -> list[Instruction]:
    """The filter as the kernel takes it: refused calls fail, a foreign table of calls ends the process.

    Args:
        bounds: which sockets there may be, and whether files may be altered.
        machine: ``x86_64`` or ``aarch64``.
        process: this process's number, the only one that it may signal.
    """
    column, architecture = MACHINES[machine]
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
