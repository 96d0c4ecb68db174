"""A participant in a network namespace whose only way out is an HTTP CONNECT proxy: a study runs, and nothing gets in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.connect_proxy import ConnectProxy
from support.federation import make_data, make_request, schema_of
from support.namespaces import listening, namespace, own_ports
from support.network import PATIENCE, wait_for
from support.processes import Processes
from veilsum_coordinator.protocol.settings import Waits

TRY = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 2)"


def test_a_participant_behind_a_proxy_in_its_own_namespace(tmp_path: Path) -> None:
    data = make_data("abc", 40, 3)
    with namespace() as place, ConnectProxy(place.outside, credentials=("hospital", "s3cret: x")) as proxy:
        processes = Processes(tmp_path, data, waits=Waits(grace=10), budget=(None, 1e-5), max_peer_streams=16)
        inner: subprocess.Popen[bytes] | None = None
        try:
            processes.start_coordinator()
            port = int(processes.address.rsplit(":", 1)[1])
            processes.start("a", "b")
            directory = processes.directory("c")
            config = directory / "participant.toml"
            (directory / "password").touch(0o600)
            (directory / "password").write_text("s3cret: x\n")
            keys = f'proxy = "{proxy.address}"\nproxy_user = "hospital"\nproxy_password_file = "password"\n'
            kept = [line for line in config.read_text().splitlines() if not line.startswith("coordinator =")]
            config.write_text(f'coordinator = "localhost:{port}"\n{keys}' + "\n".join(kept) + "\n")

            for host in ("127.0.0.1", "localhost", place.outside):  # no other way out
                tried = subprocess.run(
                    place.command(sys.executable, "-c", TRY, host, str(port)), capture_output=True, timeout=PATIENCE
                )
                assert tried.returncode != 0, host
                assert b"refused" in tried.stderr or b"unreachable" in tried.stderr, tried.stderr

            command = [sys.executable, "-m", "veilsum_deploy.cli", "participant", "start", "--config", str(config)]
            # the environment points elsewhere, and says to use no proxy: neither is followed
            environment = {
                **os.environ,
                "no_proxy": "*",
                "https_proxy": f"http://{place.outside}:9",
                "grpc_proxy": "http://127.0.0.1:9",
            }
            with (directory / "log").open("ab") as log:
                inner = subprocess.Popen(place.command(*command), stdout=log, stderr=log, env=environment)
            wait_for(lambda: processes.connected() == {"a", "b", "c"}, "every session")
            assert set(proxy.requests) == {(f"localhost:{port}", 200)}

            key = processes.submit(processes.compile(make_request(schema_of(3), epsilon=1.0)))
            last = processes.await_end(key)
            assert last.phase == "finished", last.reason
            assert [(item.attempts, sorted(item.cohort)) for item in last.rounds] == [(1, ["a", "b", "c"])]

            assert os.readlink(f"/proc/{inner.pid}/ns/net") != os.readlink("/proc/self/ns/net")
            assert listening(inner.pid) == []
            own = own_ports(inner.pid)
            assert own, "the session's own connection"
            for target in (*own, port, 22, 8461, 9464, 9465):
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((place.inside, target), 2)
            assert "s3cret" not in (directory / "log").read_text()
        finally:
            if inner is not None:
                inner.terminate()
                inner.wait(PATIENCE)
            processes.stop()
    assert inner is not None
    assert inner.returncode == 0
