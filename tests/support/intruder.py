"""What hostile code inside a process of ours tries: other files, processes, descriptors, networks, programs, the kernel.

``python -P intruder.py`` reads a JSON object from standard input, confines itself by the bounds in it unless there are none,
does the work that it is allowed, then tries everything in :data:`ATTEMPTS`, and prints which of it succeeded. It imports
nothing of ours but what confines it, so that it is what a compromised interpreter is.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"


@dataclass(frozen=True)
class Victim:
    """Another process of the same user, and what belongs to it.

    Attributes:
        process: its number.
        address: of ``secret`` in its memory.
        secret: bytes that nobody else may read.
        files: a folder of its files; each attempt has one of its own, by the attempt's name.
        descriptor: of a file that it holds open.
        port, unix, abstract: where it listens: TCP on loopback, a path, a name without a path.
        inherited: a descriptor that the intruder's parent forgot to close.
    """

    process: int
    address: int
    secret: bytes
    files: Path
    descriptor: int
    port: int
    unix: str
    abstract: str
    inherited: int


ATTEMPTS: dict[str, Callable[[Victim, Path], object]] = {}
"""By name; each is given the victim and its own file of the victim's, and raises, or returns something false, if it fails."""


def attempt(function: Callable[[Victim, Path], object]) -> Callable[[Victim, Path], object]:
    ATTEMPTS[function.__name__] = function
    return function


def call(x86: int, arm: int, *arguments: Any) -> int:
    """A system call by its number; raises as the kernel says."""
    ctypes.set_errno(0)
    LIBC.syscall.restype = ctypes.c_long
    given = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result = LIBC.syscall(ctypes.c_long(x86 if X86 else arm), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


# files


@attempt
def read_a_file(_: Victim, own: Path) -> object:
    return own.read_bytes()


@attempt
def overwrite_a_file(_: Victim, own: Path) -> object:
    return own.write_bytes(b"forged")


@attempt
def append_to_a_file(_: Victim, own: Path) -> object:
    with own.open("ab") as file:
        return file.write(b"forged")


@attempt
def truncate_a_file(_: Victim, own: Path) -> object:
    os.truncate(own, 0)
    return own.stat().st_size == 0


@attempt
def remove_a_file(_: Victim, own: Path) -> object:
    own.unlink()
    return True


@attempt
def rename_a_file(_: Victim, own: Path) -> object:
    return own.rename(own.with_suffix(".moved"))


@attempt
def link_a_file(_: Victim, own: Path) -> object:
    os.link(own, own.with_suffix(".linked"))
    return True


@attempt
def make_a_file(_: Victim, own: Path) -> object:
    return own.with_suffix(".made").write_bytes(b"x")


@attempt
def make_a_folder(_: Victim, own: Path) -> object:
    own.with_suffix(".folder").mkdir()
    return True


@attempt
def make_a_link(_: Victim, own: Path) -> object:
    own.with_suffix(".link").symlink_to("/etc/passwd")
    return True


@attempt
def list_a_folder(victim: Victim, _: Path) -> object:
    return os.listdir(victim.files)


@attempt
def open_a_file_to_others(_: Victim, own: Path) -> object:
    own.chmod(0o666)
    return True


@attempt
def give_a_file_away(_: Victim, own: Path) -> object:
    os.chown(own, os.getuid(), os.getgid())
    return True


@attempt
def date_a_file_back(_: Victim, own: Path) -> object:
    os.utime(own, (1, 1))
    return True


@attempt
def mark_a_file(_: Victim, own: Path) -> object:
    os.setxattr(own, "user.mark", b"x")
    return True


@attempt
def watch_a_file(_: Victim, own: Path) -> object:
    watching = LIBC.inotify_init()
    return LIBC.inotify_add_watch(watching, str(own).encode(), 0xFFF) >= 0


@attempt
def leave_a_file_in_shared_memory(victim: Victim, _: Path) -> object:
    path = Path(f"/dev/shm/veilsum-{victim.process}")
    path.write_bytes(b"x")
    path.unlink()
    return True


@attempt
def leave_a_file_in_tmp(victim: Victim, _: Path) -> object:
    path = Path(f"/tmp/veilsum-{victim.process}")
    path.write_bytes(b"x")
    path.unlink()
    return True


@attempt
def use_a_handle_of_a_file(_: Victim, own: Path) -> object:
    handle, mount = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 136), ctypes.c_int()
    return call(303, 264, -100, str(own).encode(), handle, ctypes.byref(mount), 0) == 0


@attempt
def use_an_inherited_descriptor(victim: Victim, _: Path) -> object:
    return os.pread(victim.inherited, 16, 0)


# other processes


@attempt
def read_memory_by_proc(victim: Victim, _: Path) -> object:
    with open(f"/proc/{victim.process}/mem", "rb", buffering=0) as memory:
        memory.seek(victim.address)
        return memory.read(len(victim.secret)) == victim.secret


@attempt
def read_memory_of_another(victim: Victim, _: Path) -> object:
    found = ctypes.create_string_buffer(len(victim.secret))
    local = struct.pack("@PN", ctypes.addressof(found), len(victim.secret))
    remote = struct.pack("@PN", victim.address, len(victim.secret))
    call(310, 270, victim.process, local, 1, remote, 1, 0)
    return found.raw == victim.secret


@attempt
def write_memory_of_another(victim: Victim, _: Path) -> object:
    mine = ctypes.create_string_buffer(victim.secret, len(victim.secret))
    local = struct.pack("@PN", ctypes.addressof(mine), len(victim.secret))
    remote = struct.pack("@PN", victim.address, len(victim.secret))
    return call(311, 271, victim.process, local, 1, remote, 1, 0)


@attempt
def read_maps(victim: Victim, _: Path) -> object:
    return Path(f"/proc/{victim.process}/maps").read_text()


@attempt
def read_environment(victim: Victim, _: Path) -> object:
    return Path(f"/proc/{victim.process}/environ").read_bytes()


@attempt
def read_command_line(victim: Victim, _: Path) -> object:
    return Path(f"/proc/{victim.process}/cmdline").read_bytes()


@attempt
def list_processes(_: Victim, __: Path) -> object:
    return os.listdir("/proc")


@attempt
def list_descriptors(victim: Victim, _: Path) -> object:
    return os.listdir(f"/proc/{victim.process}/fd")


@attempt
def open_a_descriptor_by_proc(victim: Victim, _: Path) -> object:
    return Path(f"/proc/{victim.process}/fd/{victim.descriptor}").read_bytes()


@attempt
def take_a_descriptor(victim: Victim, _: Path) -> object:
    return call(438, 438, call(434, 434, victim.process, 0), victim.descriptor, 0)


@attempt
def look_into_the_parent(_: Victim, __: Path) -> object:
    return os.listdir(f"/proc/{os.getppid()}/fd")


@attempt
def trace(victim: Victim, _: Path) -> object:
    call(101, 117, 0x4206, victim.process, 0, 0)  # PTRACE_SEIZE
    return True


@attempt
def compare_descriptors(victim: Victim, _: Path) -> object:
    return call(312, 272, victim.process, os.getpid(), 0, 0, 0) >= 0


@attempt
def send_a_signal(victim: Victim, _: Path) -> object:
    os.kill(victim.process, signal.SIGWINCH)
    return True


@attempt
def send_a_signal_to_the_parent(_: Victim, __: Path) -> object:
    os.kill(os.getppid(), signal.SIGWINCH)
    return True


@attempt
def send_a_signal_to_the_group(_: Victim, __: Path) -> object:
    os.kill(0, signal.SIGWINCH)
    return True


@attempt
def send_a_signal_to_everybody(_: Victim, __: Path) -> object:
    os.kill(-1, 0)
    return True


@attempt
def send_a_signal_to_a_thread(victim: Victim, _: Path) -> object:
    return call(234, 131, victim.process, victim.process, signal.SIGWINCH) == 0


@attempt
def queue_a_signal(victim: Victim, _: Path) -> object:
    info = struct.pack("=iii", signal.SIGWINCH, 0, -1).ljust(128, b"\0")
    return call(129, 138, victim.process, signal.SIGWINCH, info) == 0


@attempt
def send_a_signal_by_descriptor(victim: Victim, _: Path) -> object:
    call(424, 424, call(434, 434, victim.process, 0), signal.SIGWINCH, None, 0)
    return True


@attempt
def aim_signals_of_a_socket(victim: Victim, _: Path) -> object:
    one, _other = socket.socketpair()
    fcntl.fcntl(one, fcntl.F_SETOWN, victim.process)
    return True


@attempt
def limit_another(victim: Victim, _: Path) -> object:
    resource.prlimit(victim.process, resource.RLIMIT_CPU, resource.prlimit(victim.process, resource.RLIMIT_CPU))
    return True


@attempt
def slow_another_down(victim: Victim, _: Path) -> object:
    os.setpriority(os.PRIO_PROCESS, victim.process, 19)
    return True


@attempt
def move_another_to_one_core(victim: Victim, _: Path) -> object:
    os.sched_setaffinity(victim.process, os.sched_getaffinity(victim.process))
    return True


@attempt
def offer_another_to_the_killer(victim: Victim, _: Path) -> object:
    return Path(f"/proc/{victim.process}/oom_score_adj").write_text("500")


@attempt
def make_itself_readable(_: Victim, __: Path) -> object:
    LIBC.prctl(4, 1, 0, 0, 0)
    return LIBC.prctl(3, 0, 0, 0, 0) == 1


# new processes


@attempt
def outlive_its_parent(_: Victim, __: Path) -> object:
    return any(LIBC.prctl(1, number, 0, 0, 0) == 0 for number in (signal.SIGCONT, 0))


@attempt
def be_somebody_else(_: Victim, __: Path) -> object:
    return call(117, 147, os.getuid(), os.getuid(), os.getuid()) == 0


@attempt
def fork(_: Victim, __: Path) -> object:
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


@attempt
def fork_by_clone(_: Victim, __: Path) -> object:
    child = call(56, 220, signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


@attempt
def fork_by_clone3(_: Victim, __: Path) -> object:
    arguments = struct.pack("=11Q", *([0] * 4), signal.SIGCHLD, *([0] * 6))
    child = call(435, 435, arguments, len(arguments))
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


@attempt
def spawn(_: Victim, __: Path) -> object:
    return os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


@attempt
def run_a_file_in_memory(_: Victim, __: Path) -> object:
    with contextlib.suppress(ChildProcessError):
        made = os.memfd_create("program")
        os.write(made, Path("/bin/true").read_bytes() if os.access("/bin/true", os.R_OK) else b"")
        child = os.fork()
        if child == 0:
            with contextlib.suppress(OSError):
                os.execve(made, ["true"], {})  # noqa: S606
            os._exit(1)
        return os.waitpid(child, 0)[1] == 0
    return False


# networks


def _says_hello(made: socket.socket, address: Any) -> object:
    with made:
        made.settimeout(5)
        made.connect(address)
        return True


@attempt
def dial_tcp(victim: Victim, _: Path) -> object:
    return _says_hello(socket.socket(), ("127.0.0.1", victim.port))


def _sends(victim: Victim, send: Callable[[socket.socket, tuple[str, int]], object]) -> object:
    """TCP Fast Open: the kernel's rules for ports are asked at connect(2) alone."""
    with socket.socket() as made:
        made.setblocking(False)
        try:
            return send(made, ("127.0.0.1", victim.port))
        except BlockingIOError:  # it dials
            return True


@attempt
def dial_tcp_by_sending(victim: Victim, _: Path) -> object:
    return _sends(victim, lambda made, where: made.sendto(b"x", socket.MSG_FASTOPEN, where))


@attempt
def dial_tcp_by_sending_messages(victim: Victim, _: Path) -> object:
    return _sends(victim, lambda made, where: made.sendmsg([b"x"], [], socket.MSG_FASTOPEN, where))


@attempt
def dial_multipath_tcp(victim: Victim, _: Path) -> object:
    return _says_hello(socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262), ("127.0.0.1", victim.port))


@attempt
def listen_on_tcp(_: Victim, __: Path) -> object:
    with socket.create_server(("127.0.0.1", 0)):
        return True


@attempt
def listen_without_an_address(_: Victim, __: Path) -> object:
    with socket.socket() as made:
        made.listen()
        return True


@attempt
def dial_a_path(victim: Victim, _: Path) -> object:
    return _says_hello(socket.socket(socket.AF_UNIX), victim.unix)


@attempt
def dial_an_abstract_name(victim: Victim, _: Path) -> object:
    return _says_hello(socket.socket(socket.AF_UNIX), "\0" + victim.abstract)


@attempt
def turn_a_pair_to_somebody_else(victim: Victim, _: Path) -> object:
    one, _other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return one.sendto(b"x", "\0" + victim.abstract + "-datagrams")


@attempt
def listen_on_a_path(_: Victim, own: Path) -> object:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(own.with_suffix(".sock")))
        return True


@attempt
def ask_for_the_network(_: Victim, __: Path) -> object:
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)


@attempt
def open_a_virtual_socket(_: Victim, __: Path) -> object:
    return socket.socket(40, socket.SOCK_STREAM)


@attempt
def open_a_socket_of_the_kernels_ciphers(_: Victim, __: Path) -> object:
    return socket.socket(38, socket.SOCK_SEQPACKET)


# the kernel


@attempt
def make_a_namespace(_: Victim, __: Path) -> object:
    return call(272, 97, 0x10000000) == 0  # CLONE_NEWUSER


@attempt
def enter_a_namespace(_: Victim, __: Path) -> object:
    return call(308, 268, os.open("/proc/self/ns/user", os.O_RDONLY), 0) == 0


@attempt
def make_a_ring(_: Victim, __: Path) -> object:
    return call(425, 425, 4, ctypes.create_string_buffer(120))


@attempt
def handle_faults_of_pages(_: Victim, __: Path) -> object:
    return call(323, 282, 1)  # UFFD_USER_MODE_ONLY


@attempt
def load_a_program_into_the_kernel(_: Victim, __: Path) -> object:
    return call(321, 280, 0, ctypes.create_string_buffer(struct.pack("=4I", 2, 4, 8, 1), 128), 128)


@attempt
def count_events(_: Victim, __: Path) -> object:
    return call(298, 241, ctypes.create_string_buffer(struct.pack("=IIQ", 1, 112, 0), 112), 0, -1, -1, 0)


@attempt
def keep_a_key(_: Victim, __: Path) -> object:
    return call(248, 217, b"user", b"veilsum", b"x", 1, -3)


@attempt
def share_memory_by_a_number(_: Victim, __: Path) -> object:
    return call(29, 194, 0, mmap.PAGESIZE, 0o1600) >= 0


@attempt
def share_messages_by_a_number(_: Victim, __: Path) -> object:
    made = call(68, 186, 0, 0o1600)
    call(71, 187, made, 0, 0)
    return made >= 0


@attempt
def open_a_queue_of_messages(victim: Victim, _: Path) -> object:
    name = f"veilsum-{victim.process}".encode()
    made = call(240, 180, name, os.O_CREAT | os.O_RDWR, 0o600, 0)
    call(241, 181, name)
    return made


@attempt
def change_its_personality(_: Victim, __: Path) -> object:
    return call(135, 92, 0x0040000) >= 0


@attempt
def type_into_the_terminal(_: Victim, __: Path) -> object:
    made, other = os.openpty()
    fcntl.ioctl(other, 0x5412, b"x")  # TIOCSTI
    return made


def work(asked: dict[str, Any]) -> dict[str, object]:
    """What a role may: read and write its files, dial its port, talk to who started it, use memory, threads and time."""
    import threading

    done: dict[str, object] = {"threads": False}
    told = threading.Thread(target=lambda: done.update(threads=True))
    told.start()
    told.join()
    done["read"] = [len(Path(path).read_bytes()) for path in asked.get("reads", ())]
    for path in asked.get("writes", ()):
        folder = Path(path)
        (folder / "new").write_bytes(b"1")
        os.replace(folder / "new", folder / "kept")
        (folder / "kept").unlink()
    for port in asked.get("dials", ()):
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    one, other = socket.socketpair()
    shared = os.memfd_create("rows")
    os.ftruncate(shared, 4096)
    with mmap.mmap(shared, 4096) as rows:
        rows[:4] = b"rows"
    socket.send_fds(one, [b"x"], [shared])
    _, (passed,), _, _ = socket.recv_fds(other, 1, 1)
    done["memory"] = os.pread(passed, 4, 0) == b"rows"
    done["itself"] = len(Path("/proc/self/status").read_text()) > 0
    os.kill(os.getpid(), 0)
    done["clock"] = time.monotonic() > 0 and len(os.urandom(4)) == 4
    return done


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    lacking: list[str] = []
    if asked["bounds"] is not None:
        from veilsum_node.process.confinement import Bounds, confine

        lacking = confine(Bounds.from_text(json.dumps(asked["bounds"])), asked.get("keep", ())).lacking()
    done = work(asked)
    fields = asked["victim"]
    victim = Victim(**{**fields, "secret": fields["secret"].encode(), "files": Path(fields["files"])})
    signal.signal(signal.SIGWINCH, signal.SIG_IGN)
    made, failed = [], {}
    for name, function in ATTEMPTS.items():
        try:
            if function(victim, victim.files / name):
                made.append(name)
            else:
                failed[name] = "nothing came of it"
        except (OSError, ValueError) as error:
            failed[name] = f"{type(error).__name__} {error}"
    descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    print(
        json.dumps({"made": made, "failed": failed, "work": done, "descriptors": descriptors, "lacking": lacking}), flush=True
    )
    with contextlib.suppress(OSError):
        os.execve("/bin/echo", ["echo", "executed"], {})  # noqa: S606


if __name__ == "__main__":
    main()
