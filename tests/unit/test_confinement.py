"""The filter of system calls says what it is meant to, on both machines: tables and program, each against an oracle."""

from __future__ import annotations

import ctypes
import errno
import subprocess
import sys
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.victims import unconfinable
from veilsum_node.errors import ConfigurationError
from veilsum_node.process import confinement
from veilsum_node.process.confinement import Bounds, Offered
from veilsum_node.process.system_calls import ALTERING, ARGUED, FORBIDDEN, LAST_CALL, REACHING, filter_program

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
PROCESS = 4321
BOUNDS = [
    Bounds(network=a, local=b, forks=c, alters=d, listen=e)
    for a, b, c, d, e in product((False, True), (False, True), (False, True), (False, True), ((), None))
]


@cache
def program_of(bounds: Bounds, machine: str) -> list[tuple[int, int, int, int]]:
    return filter_program(bounds, machine, PROCESS)


def judged(bounds: Bounds, machine: str, number: int, arguments: tuple[int, ...], architecture: int | None = None) -> int:
    """What the filter returns for a call: an interpreter of classic BPF, as far as seccomp has it."""
    architecture = ARCHITECTURES[machine] if architecture is None else architecture
    data = number.to_bytes(4, "little") + architecture.to_bytes(4, "little") + bytes(8)
    data += b"".join(item.to_bytes(8, "little") for item in arguments)
    program, at, value = program_of(bounds, machine), 0, 0
    while True:
        code, true, false, operand = program[at]
        at += 1
        if code == 0x20:
            value = int.from_bytes(data[operand : operand + 4], "little")
        elif code == 0x54:
            value &= operand
        elif code == 0x06:
            return operand
        else:
            at += true if {0x15: value == operand, 0x25: value > operand}[code] else false


def named(machine: str) -> dict[int, str]:
    column = list(ARCHITECTURES).index(machine)
    calls = FORBIDDEN | ALTERING | REACHING | ARGUED
    return {numbers[column]: name for name, numbers in calls.items() if numbers[column] >= 0}


def allowed(bounds: Bounds, name: str | None, given: tuple[int, ...]) -> bool:
    """What the module says in words, said once more."""
    first, second, third, fourth = (item & 0xFFFFFFFF for item in given[:4])
    match name:
        case "clone3":
            return False
        case "clone":
            return not first & 0x7E020000 if bounds.forks else bool(first & 0x10000)
        case "fork" | "vfork":
            return bounds.forks
        case "kill" | "tgkill" | "rt_sigqueueinfo" | "rt_tgsigqueueinfo":
            return first == PROCESS
        case "prlimit64" | "sched_setaffinity":
            return first in (0, PROCESS)
        case "fcntl":
            return second not in (8, 15, 1026)
        case "ioctl":
            return second not in (0x5412, 0x541C, 0x8901, 0x8902)
        case "prctl":
            return {4: second == 0, 1: second == 9}.get(first, True)
        case "socket":
            families = {2: bounds.network, 10: bounds.network, 1: bounds.local}
            return families.get(first, False) and second & 15 in (1, 2) and third in (0, 6, 17)
        case "sendto" | "sendmsg" | "sendmmsg":
            return not (third if name == "sendmsg" else fourth) & 0x20000000
        case "socketpair":
            return first == 1 and second & 15 in (1, 5)
    if name in FORBIDDEN:
        return False
    if name in ALTERING:
        return bounds.alters
    listens = bounds.network and bounds.listen is None
    return {"connect": bounds.network or bounds.local, "bind": listens, "listen": listens}.get(name or "", True)


SMALL = st.sampled_from(
    [
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        8,
        9,
        10,
        15,
        16,
        17,
        262,
        1026,
        PROCESS,
        0x10000,
        0x10011,
        0x20011,
        0x10000000,
        0x20000000,
        0x20004000,
        0x5412,
        0x541C,
        0x8901,
        0x80801,
    ]
)
ARGUMENTS = st.tuples(*([st.one_of(SMALL, st.integers(0, 2**64 - 1))] * 6))


@pytest.mark.parametrize("machine", ARCHITECTURES)
@given(data=st.data())
def test_the_filter_says_what_is_said_in_words(machine: str, data: st.DataObject) -> None:
    names = named(machine)
    bounds = data.draw(st.sampled_from(BOUNDS))
    number = data.draw(st.one_of(st.sampled_from(sorted(names)), st.integers(0, LAST_CALL)))
    arguments = data.draw(ARGUMENTS)
    found = judged(bounds, machine, number, arguments)
    if allowed(bounds, names.get(number), arguments):
        assert found == ALLOW
    else:
        assert found & 0xFFFF0000 == ERRNO
        assert found & 0xFFFF == (errno.ENOSYS if names[number] == "clone3" else errno.EPERM)


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_every_call_of_the_lists_is_judged(machine: str, bounds: Bounds) -> None:
    for number, name in named(machine).items():
        assert (judged(bounds, machine, number, (0, 0, 0, 0, 0, 0)) == ALLOW) == allowed(bounds, name, (0, 0, 0, 0))


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_of_another_table_end_the_process_and_later_ones_are_unknown(machine: str) -> None:
    nothing = (0, 0, 0, 0, 0, 0)
    for other in {0x40000003, *ARCHITECTURES.values()} - {ARCHITECTURES[machine]}:
        assert judged(Bounds(), machine, 0, nothing, other) == KILL
    assert judged(Bounds(), machine, 0x40000000 + 101, nothing) == KILL
    assert judged(Bounds(), machine, LAST_CALL, nothing) == ALLOW
    for number in (LAST_CALL + 1, 0x3FFFFFFF):
        assert judged(Bounds(), machine, number, nothing) == ERRNO | errno.ENOSYS


@pytest.mark.parametrize(("machine", "token"), [*ARCHITECTURES.items()])
def test_numbers_are_those_that_libseccomp_knows(machine: str, token: int) -> None:
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError as error:
        pytest.skip(f"without libseccomp: {error}")
    resolve = library.seccomp_syscall_resolve_name_arch
    column = list(ARCHITECTURES).index(machine)
    for name, numbers in (FORBIDDEN | ALTERING | REACHING | ARGUED).items():
        known = resolve(token, name.encode())
        assert known != -1, f"{name} is not a system call"
        assert numbers[column] == max(known, -1), name


def test_programs_are_short_and_end() -> None:
    for machine in ARCHITECTURES:
        for bounds in BOUNDS:
            program = filter_program(bounds, machine, PROCESS)
            assert len(program) < 4096
            for place, (code, true, false, _) in enumerate(program):
                assert code in (0x20, 0x54, 0x06) or place + 1 + max(true, false) < len(program)


@pytest.mark.parametrize(
    ("found", "enough", "said"),
    [
        (Offered(True, True, 7), True, ""),
        (Offered(True, True, 1), True, "ports of TCP"),
        (Offered(True, True, 0), False, "Landlock"),
        (Offered(True, False, 7), False, "seccomp"),
        (Offered(False, False, 0), False, "machine"),
    ],
)
def test_what_a_kernel_lacks_is_said(found: Offered, enough: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found.enough is enough
    assert said in "; ".join(found.lacking())
    assert bool(found.lacking()) == bool(said)
    monkeypatch.setattr(confinement, "offered", lambda: found)
    if not enough:
        with pytest.raises(ConfigurationError, match='isolation = "none"'):
            confinement.confine(Bounds())


@given(
    st.builds(
        Bounds,
        read=st.lists(st.sampled_from([Path("/a"), Path("/b c/ü")])).map(tuple),
        dial=st.none() | st.lists(st.integers(0, 65535)).map(tuple),
        listen=st.none() | st.just((9465,)),
        network=st.booleans(),
        apart=st.sampled_from([(), (Path("/x"),)]),
    )
)
def test_bounds_travel_as_text(bounds: Bounds) -> None:
    assert Bounds.from_text(bounds.to_text()) == bounds
    assert "\n" not in bounds.to_text()


def test_what_lies_beneath_a_path_that_may_be_read_is_not_apart(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    key = tmp_path / "data" / "key.pem"
    assert not Bounds(read=(tmp_path / "data",)).reachable()
    for folder in (tmp_path, tmp_path / "link", key):
        assert Bounds(read=(folder,), apart=(key,)).reachable()
        assert Bounds(write=(folder,), apart=(key,)).reachable()
    assert not Bounds(read=(tmp_path / "data",), apart=(tmp_path / "data-2",)).reachable()
    assert Bounds(apart=(Path(confinement.__file__),)).reachable(), "what Python imports is read by every process"


def _confined(code: str) -> subprocess.CompletedProcess[str]:
    head = "from veilsum_node.process.confinement import *\n"
    return subprocess.run([sys.executable, "-P", "-c", head + code], capture_output=True, text=True, timeout=240)


STORING = """
from pathlib import Path
def store(place):
    confine(Bounds(write=(place,), alters=True))
    from veilsum_node.database import open_database
    from veilsum_node.database_places import open_readonly
    database = open_database(place / "a.db")
    with database.transaction() as connection:
        connection.exec_driver_sql("create table t (a integer check (a < 900), b blob)")
        for a in range(300):
            connection.exec_driver_sql("insert into t values (?, ?)", (a, bytes(30_000)))
    with database.transaction() as connection:
        connection.exec_driver_sql("update t set a = a + 1, b = b || b")
    with open_readonly(place / "a.db") as reader, reader.reading() as connection:
        print(len(connection.exec_driver_sql("select a, b from t order by b, a desc").all()))
"""


@pytest.mark.skipif(unconfinable() != "", reason=unconfinable() or "it is")
class TestConfined:
    def test_a_process_with_threads_is_refused(self) -> None:
        waiting = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        done = _confined(f"{waiting}confine(Bounds())\n")
        assert "before it starts a thread" in done.stderr

    def test_what_must_be_apart_and_is_not_is_refused(self, tmp_path: Path) -> None:
        done = _confined(f"from pathlib import Path\nconfine(Bounds(read=(Path('/'),), apart=(Path({str(tmp_path)!r}),)))")
        assert "within reach" in done.stderr

    def test_what_is_its_own_of_proc_stays_readable_when_the_kernel_forgets_what_it_cached(self) -> None:
        done = _confined(
            "import os\nbefore = len(os.listdir('/proc/self/fd'))\nconfine(Bounds())\n"
            "for _ in range(2000):\n    open('/proc/self/status').close()\n"
            "assert os.readlink('/proc/self/exe') and open('/proc/self/cgroup').read() is not None\n"
        )
        assert done.returncode == 0, done.stderr

    def test_a_call_of_the_other_table_ends_the_process(self) -> None:
        if sys.platform != "linux" or confinement.platform.machine() != "x86_64":
            pytest.skip("x32 is of x86-64")
        done = _confined("import ctypes\nconfine(Bounds())\nctypes.CDLL(None).syscall(0x40000000 + 39)\nprint('went on')")
        assert done.returncode == -31
        assert "went on" not in done.stdout

    def test_a_database_of_any_size_is_read_and_written_confined(self, tmp_path: Path) -> None:
        """Sorts, and what a statement undoes as it fails, spill into files of their own, which lie elsewhere."""
        done = _confined(f"{STORING}store(Path({str(tmp_path)!r}))\n")
        assert done.stdout == "300\n", done.stderr

    def test_libraries_of_ours_load_and_compute_confined(self) -> None:
        done = _confined(
            "confine(Bounds())\n"
            "import numpy, torch, torch._dynamo, pyarrow, duckdb, grpc, tenseal, sqlite3, cryptography.x509\n"
            "assert duckdb.sql('select 42').fetchall() == [(42,)]\n"
            "assert float((torch.ones(64, 64) @ torch.ones(64, 64))[0, 0]) == (numpy.ones((64, 64)) @ numpy.ones(64))[0]\n"
            "print('works')"
        )
        assert done.stdout == "works\n", done.stderr
