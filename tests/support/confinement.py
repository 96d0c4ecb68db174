"""Run a command under the restrictions of a systemd unit, without systemd: system call filter, no capabilities, a read-only
root, a bare /proc. Used as ``python confinement.py UNIT WRITABLE... -- COMMAND...``.

What a unit asks for is read from the unit; a setting that this module neither applies nor lists as left out is an error, so
that a new one is not passed over. Filters are built by libseccomp from the groups that ``systemd-analyze syscall-filter``
lists, as systemd builds them. Mounts need root; without it they are left out.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ALLOW = 0x7FFF0000
NOT_EQUAL, EQUAL, MASKED = 1, 4, 7
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, PR_CAP_AMBIENT = 38, 24, 47
CLONE_NEWNS = 0x20000
MS_RDONLY, MS_NOSUID, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 8, 32, 4096, 16384, 1 << 18
NAMESPACES = (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000)
PROT_WRITE, PROT_EXEC, SHM_EXEC = 2, 4, 0o100000
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
LAST_FAMILY = 45


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


APPLIED = _names("""
    NoNewPrivileges CapabilityBoundingSet AmbientCapabilities UMask LimitCORE LimitNOFILE ProtectSystem ProcSubset
    SystemCallFilter SystemCallErrorNumber LockPersonality MemoryDenyWriteExecute RestrictRealtime RestrictNamespaces
    RestrictAddressFamilies
""")
"""Settings that are applied here."""

ELSEWHERE = (
    # what starts the process, and where
    _names("""
        Type User Group SupplementaryGroups ReadWritePaths ExecStart ExecStartPre EnvironmentFile Environment Restart
        RestartSec KillMode TimeoutStopSec OOMPolicy
        LoadCredential SetCredential StateDirectory StateDirectoryMode RuntimeDirectory RuntimeDirectoryMode
    """)
    # a test's interpreter may lie in a home, and its files in /tmp
    | _names("ProtectHome PrivateTmp")
    # what no process without capabilities reaches, or veilsum does not ask for
    | _names("""
        SecureBits PrivateDevices DevicePolicy ProtectProc ProtectClock ProtectHostname ProtectControlGroups ProtectKernelLogs
        ProtectKernelModules ProtectKernelTunables PrivateUsers RestrictSUIDSGID SystemCallArchitectures KeyringMode RemoveIPC
    """)
    # by control group
    | _names("SocketBindAllow SocketBindDeny TasksMax")
)
"""Settings that only systemd itself applies; tests/integration/test_systemd_host.py has them at work."""

Settings = dict[str, list[str]]


def read_service(unit: Path) -> Settings:
    """Settings of a unit's [Service] section, each with its values in order."""
    found: Settings = {}
    section = ""
    for line in unit.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and not line.startswith(("#", ";")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def system_calls(groups: str) -> set[str]:
    """The names of system calls in a list of groups and names."""
    found: set[str] = set()
    for item in groups.split():
        if not item.startswith("@"):
            found.add(item)
            continue
        out = subprocess.run(["systemd-analyze", "syscall-filter", item], capture_output=True, text=True, check=True)
        lines = [line.strip() for line in out.stdout.splitlines()[1:]]
        found |= system_calls(" ".join(line for line in lines if line and not line.startswith("#")))
    return found


class Comparison(ctypes.Structure):
    """libseccomp's scmp_arg_cmp."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


class Filter:
    """A seccomp filter that allows everything but its rules."""

    def __init__(self, library: ctypes.CDLL, default: int) -> None:
        self._library = library
        library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))

    def rule(self, action: int, name: str, *comparisons: Comparison) -> None:
        """Add a rule; a name that this machine's calls do not have is passed over, as systemd does."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:
            return
        array = (Comparison * len(comparisons))(*comparisons)
        status = self._library.seccomp_rule_add_array(self._context, ctypes.c_uint32(action), number, len(array), array)
        if status not in (0, -errno.EEXIST):
            raise OSError(-status, f"seccomp rule for {name}")

    def load(self) -> None:
        """Install it for this process and what it starts."""
        status = self._library.seccomp_load(self._context)
        if status != 0:
            raise OSError(-status, "seccomp_load")


def confine(settings: Settings, writable: Iterable[Path]) -> None:
    """Restrict this process as a unit's settings say.

    Raises:
        ValueError: a setting is not known here.
    """
    unknown = sorted(set(settings) - APPLIED - ELSEWHERE)
    if unknown:
        raise ValueError(f"confinement.py does not know {unknown}")
    library, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libseccomp.so.2")
    filters = list(_filters(settings, seccomp))  # asks systemd-analyze, which the filters would stop
    os.umask(int(settings["UMask"][0], 8))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    files = min(int(settings["LimitNOFILE"][0]), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    if os.geteuid() == 0:
        _mount(library, settings, writable)
        _call(library.prctl, PR_CAP_AMBIENT, 4, 0, 0, 0)
        for capability in range(64):
            if library.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                break
    _call(library.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for item in filters:
        item.load()


def _call(function: object, *arguments: object) -> None:
    if function(*arguments) != 0:  # type: ignore[operator]
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: {arguments}")


def _mount(library: ctypes.CDLL, settings: Settings, writable: Iterable[Path]) -> None:
    """A mount namespace with a read-only root but for some places, and a /proc of processes only."""
    _call(library.unshare, CLONE_NEWNS)
    _call(library.mount, b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    assert settings["ProtectSystem"] == ["strict"]
    for place in writable:
        _call(library.mount, bytes(place), bytes(place), None, MS_BIND | MS_REC, None)
    kept = {str(place) for place in writable}
    points = [line.split()[4].replace("\\040", " ") for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in points:
        if point not in kept and not point.startswith(("/proc", "/sys", "/dev")):
            flags = MS_BIND | MS_REMOUNT | MS_RDONLY | (MS_NOSUID if point != "/" else 0)
            library.mount(b"none", point.encode(), None, flags, None)
    if settings.get("ProcSubset") == ["pid"]:
        _call(library.mount, b"proc", b"/proc", b"proc", MS_NOSUID | MS_NOEXEC, b"subset=pid")


def _filters(settings: Settings, library: ctypes.CDLL) -> Iterable[Filter]:
    refuse = 0x00050000 | getattr(errno, settings["SystemCallErrorNumber"][0])
    denied = 0x00050000 | errno.EPERM
    allowed: set[str] = {"execve"}
    for line in settings["SystemCallFilter"]:
        calls = system_calls(line.removeprefix("~"))
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    limits = Filter(library, ALLOW)
    if settings.get("MemoryDenyWriteExecute") == ["yes"]:
        both = PROT_WRITE | PROT_EXEC
        limits.rule(denied, "mmap", Comparison(2, MASKED, both, both))
        for name in ("mprotect", "pkey_mprotect"):
            limits.rule(denied, name, Comparison(2, MASKED, PROT_EXEC, PROT_EXEC))
        limits.rule(denied, "shmat", Comparison(2, MASKED, SHM_EXEC, SHM_EXEC))
    if settings.get("LockPersonality") == ["yes"]:
        limits.rule(denied, "personality", Comparison(0, NOT_EQUAL, 0, 0))
    if settings.get("RestrictRealtime") == ["yes"]:
        for policy in (1, 2, 6):
            limits.rule(denied, "sched_setscheduler", Comparison(1, EQUAL, policy, 0))
    if settings.get("RestrictNamespaces") == ["yes"]:
        for flag in NAMESPACES:
            for name in ("clone", "unshare"):
                limits.rule(denied, name, Comparison(0, MASKED, flag, flag))
        limits.rule(0x00050000 | errno.ENOSYS, "clone3")
        limits.rule(denied, "setns")
    admitted = {FAMILIES[name] for line in settings["RestrictAddressFamilies"] for name in line.split()}
    for family in range(LAST_FAMILY + 1):
        if family not in admitted:
            limits.rule(0x00050000 | errno.EAFNOSUPPORT, "socket", Comparison(0, EQUAL, family, 0))
    yield limits

    listed = Filter(library, refuse)  # last, since it does not allow to load another one
    for name in sorted(allowed):
        listed.rule(ALLOW, name)
    yield listed


def main(arguments: Sequence[str]) -> None:
    """Confine this process and become the command."""
    folder = Path.cwd()
    split = arguments.index("--")
    unit, *writable = arguments[:split]
    confine(read_service(Path(unit)), [Path(place) for place in writable])
    os.chdir(folder)  # by name: the folder may lie in another mount now
    command = arguments[split + 1 :]
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
