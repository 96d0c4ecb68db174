"""docs/deployment/systemd.md, walked through under a real systemd: it boots in namespaces and runs both services."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from support.tools import need_tool

ROOT = Path(__file__).resolve().parents[2]
BOOT = ROOT / "tests" / "support" / "host.sh"
PAGE = ROOT / "docs" / "deployment" / "systemd.md"
SECONDS = 150

SIGN = r"""
veilsum federation sign /etc/veilsum/coordinator/identity/request.csr --authority /root/authority --role coordinator \
    --name hub --host coordinator.example
veilsum federation sign /etc/veilsum/participant/identity/request.csr --authority /root/authority --role participant \
    --name north
"""

PREPARE = """
cd /opt/source
echo '127.0.0.1 localhost coordinator.example' > /etc/hosts
export PATH=/opt/veilsum/bin:/usr/sbin:/usr/bin:/sbin:/bin LD_LIBRARY_PATH=/opt/python/lib
veilsum federation init /root/authority --name trial
"""

ENVIRONMENT = """
mkdir -p /srv/extracts /srv/elsewhere
printf 'age,disease\\n50,0\\n60,1\\n' > /srv/extracts/records.csv
for role in coordinator participant; do
    echo LD_LIBRARY_PATH=/opt/python/lib > /etc/veilsum/$role/environment # this machine's Python has its library there
done
systemd-tmpfiles --create veilsum.conf
mkdir -p /etc/systemd/system/veilsum-participant.service.d
cat > /etc/systemd/system/veilsum-participant.service.d/host.conf << 'END'
[Service]
IPAddressDeny=any
IPAddressAllow=localhost
TemporaryFileSystem=/srv:ro
BindReadOnlyPaths=/srv/extracts
END
"""

PROBE = """
exec > /out/answer 2>&1
export LD_LIBRARY_PATH=/opt/python/lib
cd /
{enable}
for _ in $(seq 60); do veilsum participant health --config /etc/veilsum/participant/participant.toml && break; sleep 0.5; done
{health} && echo answered
for role in coordinator participant; do
    pid=$(systemctl show veilsum-$role --property MainPID --value)
    grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/$pid/status
    stat --format '%n %U %a' /run/credentials/veilsum-$role.service/key.pem /var/lib/veilsum-$role
    runuser -u veilsum-$role -- cat /etc/veilsum/$role/identity/key.pem > /dev/null
done
ls /proc/$pid/root/srv
# as the participant's own code would: dial another address, listen on another port
ip address add 198.51.100.1/32 dev lo
(
    echo $BASHPID > /sys/fs/cgroup/system.slice/veilsum-participant.service/cgroup.procs
    for action in 'connect(("198.51.100.1", 443))' 'bind(("127.0.0.1", 8000))'; do
        script="import socket; s = socket.socket(); s.settimeout(2); s.$action"
        echo "tried: $(/opt/veilsum/bin/python -c "$script" 2>&1 | tail -n 1)"
    done
)
systemctl --version | grep -o '[+-]BPF_FRAMEWORK'
systemctl stop veilsum-participant veilsum-coordinator
for role in coordinator participant; do
    systemctl show veilsum-$role --property ActiveState,Result,ExecMainStatus,NRestarts
done
journalctl --no-pager --output cat --unit veilsum-coordinator --unit veilsum-participant
"""


def commands(section: str) -> list[str]:
    """The indented commands of a section of the page."""
    (text,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return [line.removeprefix("    ") for line in text.splitlines() if line.startswith("    ")]


def boot(folder: Path, setup: str, probe: str) -> str:
    """Boot a host, run the setup before and the probe inside; returns what the probe wrote to /out/answer."""
    if os.geteuid() != 0:
        pytest.skip("only root may boot systemd in namespaces")
    if not Path("/lib/systemd/systemd").exists():
        pytest.skip("there is no systemd on this machine")
    for tool in ("unshare", "runuser", "pivot_root", "ip"):
        need_tool(tool)
    out = folder / "out"
    out.mkdir()
    (out / "setup").write_text(setup, encoding="utf-8")
    (out / "probe").write_text(probe, encoding="utf-8")
    namespaces = ["--mount", "--pid", "--fork", "--uts", "--ipc", "--cgroup", "--net", "--kill-child"]
    places = [folder, ROOT, sys.base_prefix, sysconfig.get_python_version(), sysconfig.get_path("purelib")]
    command = ["unshare", *namespaces, "bash", BOOT, *places]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        said = done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        said = f"{error.stdout}{error.stderr}: not over after {SECONDS} s"
    answer = out / "answer"
    if not answer.exists():
        if "booting" not in said and re.search("not permitted|denied|unshare|unknown filesystem|wrong fs type", said):
            pytest.skip(f"namespaces and mounts are not to be had here: {said.strip()[-300:]}")
        pytest.fail(f"the host did not boot: {said}\n{(out / 'console').read_text() if (out / 'console').exists() else ''}")
    return answer.read_text(encoding="utf-8", errors="replace")


@pytest.mark.system
def test_the_page_s_steps_lead_to_two_running_services(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    steps = [*commands("Both roles"), *commands("A coordinator"), *commands("A participant")]
    enable = [line for line in steps if line.startswith("systemctl enable")]
    run_as = [line for line in steps if line.startswith("runuser")]
    assert (len(enable), len(run_as)) == (2, 2)
    setup = "\n".join([PREPARE, *(line for line in steps if line not in enable + run_as), SIGN, ENVIRONMENT])
    probe = PROBE.format(enable="\n".join(enable), health=" && ".join(run_as))
    said = boot(tmp_path, setup, probe)
    assert "answered" in said, said  # the session is open, and the site's own user may ask
    assert "No study waits." in said
    assert said.count("CapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2") == 2, said
    for role in ("coordinator", "participant"):
        user = f"veilsum-{role}"
        assert f"/run/credentials/{user}.service/key.pem {user} 400" in said
        assert f"/var/lib/{user} {user} 700" in said
        assert f"cat: /etc/veilsum/{role}/identity/key.pem: Permission denied" in said
    assert "\nextracts\n" in said
    assert "elsewhere" not in said
    dialled, bound = re.findall(r"^tried: ?(.*)$", said, re.M)
    assert dialled == "TimeoutError: timed out"  # IPAddressDeny drops what goes elsewhere
    assert bound == ("PermissionError: [Errno 1] Operation not permitted" if "+BPF_FRAMEWORK" in said else "")
    for key, value in (("ActiveState", "inactive"), ("Result", "success"), ("ExecMainStatus", "0"), ("NRestarts", "0")):
        assert said.count(f"{key}={value}\n") == 2, said
    assert "session with coordinator hub open" in said
