"""docs/deployment/systemd.md and a console as in docs/console.md, walked through under a real systemd in namespaces."""

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
CONSOLE = ROOT / "docs" / "console.md"
SECONDS = 450

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

NGINX = """
cat > /root/nginx.conf << 'END'
user www-data;
pid /run/nginx.pid;
error_log /out/nginx.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path /tmp/body;
    proxy_temp_path /tmp/proxied;
    fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi;
    scgi_temp_path /tmp/scgi;
{server}
}}
END
"""

CERTIFICATE = """
from pathlib import Path
import time
from veilsum_deploy.provision import EndpointAuthority
key, certificate = EndpointAuthority(int(time.time())).issue(["veilsum.hospital.example"])
Path("/etc/ssl/veilsum.hospital.example.pem").write_bytes(certificate)
Path("/etc/ssl/private").mkdir(parents=True, exist_ok=True)
Path("/etc/ssl/private/veilsum.hospital.example.key").write_bytes(key)
"""

OFFICER = """
import re, sys
import httpx
place = "https://veilsum.hospital.example"
with httpx.Client(base_url=place, verify=False, headers={"Origin": place}) as client:
    token = sys.argv[1].partition("token=")[2]
    print("first", client.get("/").headers["location"])
    answer = client.post("/enter", data={"token": token})
    print("entered", answer.status_code, answer.headers.get("set-cookie", answer.text[-900:]).partition("=")[0])
    page = client.get("/budgets").text
    form = dict(re.findall(r'name="(csrf|population|epsilon|delta)" value="([^"]+)"', page))
    answer = client.post("/budgets", data={**form, "epsilon": "7", "reason": "by the console"})
    print("budget", answer.status_code, answer.headers.get("location"))
    print("again", "by the console (Olga Maier)" in client.get("/budgets").text)
"""

CONSOLE_PROBE = """
exec > /out/answer 2>&1
export LD_LIBRARY_PATH=/opt/python/lib
cd /
{enable}
for _ in $(seq 60); do {health} && break; sleep 0.5; done
{console}
for _ in $(seq 60); do {health} && break; sleep 0.5; done
for _ in $(seq 60); do test -S /run/veilsum-console/console.sock && break; sleep 0.5; done
{nginx} -e /out/nginx.log -c /root/nginx.conf
/opt/veilsum/bin/python /root/officer.py "$({link})"
state=/var/lib/veilsum-participant
stat --format '%n %U:%G %a' $state $state/participant.db /run/veilsum-console/console.sock
runuser -u veilsum-console -- cat /srv/extracts/records.csv
runuser -u veilsum-participant -- head -n 1 /srv/extracts/records.csv
socket=/run/veilsum-console/console.sock
runuser -u nobody -- curl --silent --unix-socket $socket http://localhost/ || echo "no way in for others"
{ledger}
{health} && echo answered
systemctl stop veilsum-console veilsum-participant veilsum-coordinator
for role in console participant coordinator; do
    systemctl show veilsum-$role --property ActiveState,Result,ExecMainStatus,NRestarts
done
journalctl --no-pager --output cat --unit veilsum-console --unit veilsum-participant
cat /out/nginx.log
"""


def fenced(after: str) -> str:
    """The console's page's first block of code after some words."""
    text = CONSOLE.read_text(encoding="utf-8").partition(after)[2]
    return text.partition("```\n")[2].partition("```")[0]


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


@pytest.mark.system
def test_a_console_beside_a_participant_and_behind_nginx(tmp_path: Path) -> None:
    """Every command of docs/console.md, as root: an officer's word through nginx is in the participant's ledger."""
    nginx = need_tool("nginx").resolve()
    place = Path("/opt/source") / nginx.relative_to(ROOT) if nginx.is_relative_to(ROOT) else nginx
    steps = [*commands("Both roles"), *commands("A coordinator"), *commands("A participant")]
    later = [line for line in steps if line.startswith(("systemctl enable", "runuser"))]
    prepare = [PREPARE, *(line for line in steps if line not in later), SIGN, ENVIRONMENT]
    prepare += ["echo 127.0.0.1 veilsum.hospital.example >> /etc/hosts", NGINX.format(server=fenced("For nginx:"))]
    prepare.append(f"/opt/veilsum/bin/python - << 'END'{CERTIFICATE}END")
    prepare.append("mkdir -p /etc/systemd/system/veilsum-console.service.d")
    own = "[Service]\\nEnvironment=LD_LIBRARY_PATH=/opt/python/lib\\n"  # where this machine's Python has its library
    prepare.append(f"printf '{own}' > /etc/systemd/system/veilsum-console.service.d/host.conf")
    prepare.append(f"cat > /root/officer.py << 'END'{OFFICER}END")
    health = next(line for line in later if "participant health" in line)
    probe = CONSOLE_PROBE.format(
        enable="\n".join(line for line in later if line.startswith("systemctl")),
        health=health,
        console=fenced("As root, on a host").replace("install -m 644 ", "install -m 644 /opt/source/"),
        nginx=place,
        link=fenced("as the console's user").strip(),
        ledger=health.replace("participant health", "ledger budget show"),
    )
    said = boot(tmp_path, "\n".join(prepare), probe)
    for line in (
        "first /login",
        "entered 303 __Host-veilsum",
        "budget 303 /budgets",
        "again True",
        "/var/lib/veilsum-participant veilsum-participant:veilsum-participant 2770",
        "/var/lib/veilsum-participant/participant.db veilsum-participant:veilsum-participant 660",
        "/run/veilsum-console/console.sock veilsum-console:veilsum-console 660",
        "cat: /srv/extracts/records.csv: Permission denied",
        "age,disease",
        "no way in for others",
        "answered",
        "Olga Maier logged in by a one-time link as officer",
    ):
        assert line in said.replace("\r", ""), (line, said)
    for key, value in (("ActiveState", "inactive"), ("Result", "success"), ("ExecMainStatus", "0"), ("NRestarts", "0")):
        assert said.count(f"{key}={value}\n") == 3, said
