"""The controller process: settings that it refuses, its readiness and metrics, and which callers it accepts."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from odradek.cli.certificate_authority import CertificateAuthority
from odradek_metadata_quorum.settings import ENV_PREFIX, QuorumProcessSettings
from odradek_metadata_quorum.storage.data_directory import format_storage
from odradek_metadata_quorum.storage.vote_file import VOTE_FILE_NAME
from odradek_metadata_quorum.storage.write_ahead_log import LogWrite
from odradek_protocol.metadata import snapshot
from odradek_protocol.rpc.v1 import admin_service_pb2 as admin
from odradek_protocol.rpc.v1 import admin_service_pb2_grpc, controller_service_pb2_grpc
from odradek_protocol.rpc.v1 import controller_service_pb2 as pb
from odradek_runtime.lifecycle import ProcessRefused, StopRequest
from odradek_runtime.listeners import ListenRefused
from odradek_runtime.settings import SettingsError, load_settings
from tests.integration.quorum.controllers import (
    WAIT_S,
    Controllers,
    controllers,
    register_request,
    start_broker,
    until,
)


def settings(**values: Any) -> QuorumProcessSettings:
    given = {
        "node.id": 0,
        "cluster.id": "c",
        "log.dirs": "/nowhere",
        "controller.quorum.voters": "0@127.0.0.1:9095",
        **{name.replace("_", "."): value for name, value in values.items()},
    }
    found = load_settings(
        QuorumProcessSettings,
        env={},
        env_prefix=ENV_PREFIX,
        assignments=[f"{name}={value}" for name, value in given.items()],
    )
    found.check()
    return found


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"node_id": 7}, "not in controller.quorum.voters"),
        ({"cluster_id": " "}, "cluster.id is empty"),
        ({"listeners": "RAFT://127.0.0.1:0"}, "exactly the listeners RAFT and CONTROLLER"),
        ({"min_insync_replicas": "zero"}, "min.insync.replicas: 'zero' is not a whole number"),
        ({"min_insync_replica": "1"}, "did you mean min.insync.replicas"),
        ({"broker_session_timeout_ms": "5"}, "at least 100 ms"),
        ({"controller_quorum_voters": "0@host"}, "does not have the form host:port"),
    ],
)
def test_settings_that_cannot_be_are_named_with_the_way_out(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        settings(**values)


def test_cluster_defaults_are_passed_on() -> None:
    found = settings(min_insync_replicas=2, auto_create_topics_enable="false")
    assert found.controller_settings().initial_configs == (
        ("auto.create.topics.enable", "false"),
        ("min.insync.replicas", "2"),
    )


async def refused(found: Controllers, **more: Any) -> str:
    with pytest.raises(ProcessRefused) as caught:
        await found.build(0, **more).run(StopRequest())
    return str(caught.value)


async def test_directories_that_are_not_its_own_are_refused(tmp_path: Path) -> None:
    found = Controllers(tmp_path)
    never = await refused(found, **{"storage.format.if.empty": "false"})
    assert "odradek storage format" in never
    async with controllers(tmp_path) as running:
        await running.active()
        held = Controllers(tmp_path)
        assert str(tmp_path / "0") in await refused(held)
    other = await refused(found, **{"cluster.id": "other"})
    assert "integration" in other
    assert "other" in other


async def test_a_snapshot_of_a_newer_program_is_called_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is damaged, so the error must not advise to empty or format the directory."""
    settings = {"metadata_log_max_entries_between_snapshots": 10}
    async with controllers(tmp_path, **settings) as running:
        node = await running.active()
        for number in range(12):
            await running.admin(node).AlterConfigs(
                admin.AlterConfigsRequest(
                    resources=[
                        admin.AlterConfigsResource(
                            type=admin.CONFIG_RESOURCE_TYPE_BROKER,
                            operations=[
                                admin.AlterConfigsOperation(
                                    name="log.retention.ms", value=str(1000 + number)
                                )
                            ],
                        )
                    ]
                )
            )
        await until(lambda: list((tmp_path / "0").glob("snapshot-*")), "a snapshot")
    monkeypatch.setattr(snapshot, "METADATA_VERSION_MAX", 1)
    with pytest.raises(ExceptionGroup) as caught:
        await Controllers(tmp_path).build(0).run(StopRequest())
    (refusal,) = caught.value.exceptions
    assert isinstance(refusal, ProcessRefused)
    said = str(refusal)
    assert "a newer program is needed" in said
    assert "metadata.version 3" in said
    assert "damaged" not in said
    monkeypatch.undo()
    async with controllers(tmp_path) as running:
        assert running.image(await running.active()).metadata_version == 3


async def test_a_taken_port_is_named(tmp_path: Path) -> None:
    async with controllers(tmp_path / "a") as running:
        await running.active()
        second = Controllers(tmp_path / "b")
        second.rpc_ports = running.rpc_ports
        with pytest.raises(ListenRefused, match=f"port {running.rpc_ports[0]} .* is in use"):
            await second.build(0).run(StopRequest())


def test_beyond_loopback_it_wants_tls(tmp_path: Path) -> None:
    found = Controllers(tmp_path)
    with pytest.raises(ListenRefused, match="--insecure"):
        found.build(0, listeners="RAFT://127.0.0.1:0,CONTROLLER://0.0.0.0:0")


async def http(port: int, path: str) -> tuple[str, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return head.split("\r\n")[0], body


async def test_metrics_and_health_are_told(tmp_path: Path) -> None:
    async with controllers(tmp_path) as found:
        heart = await start_broker(found)
        await found.admin(0).CreateTopics(
            admin.CreateTopicsRequest(topics=[admin.NewTopic(name="t", partition_count=4)])
        )
        port = found.processes[0].ports["METRICS"]
        assert (await http(port, "/livez"))[0].endswith("200 OK")
        assert (await http(port, "/readyz"))[0].endswith("200 OK")
        _, body = await http(port, "/metrics")
        metrics = dict(
            line.rsplit(" ", 1) for line in body.splitlines() if not line.startswith("#")
        )
        prefix = "odradek_metadata_quorum_"
        assert metrics[prefix + "active_controller"] == "1.0"
        assert metrics[prefix + "partitions"] == "4.0"
        assert metrics[prefix + "offline_partitions"] == "0.0"
        assert metrics[prefix + "fenced_brokers"] == "0.0"
        assert float(metrics[prefix + "commit_offset"]) >= 4
        assert metrics[prefix + "broker_registrations_total"] == "1.0"
        assert metrics[prefix + "broker_fencings_total"] == "0.0"
        assert float(metrics[prefix + "log_syncs_total"]) > 0
        heart.close()


async def test_a_follower_whose_disk_hangs_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another controller stopped now, no majority that can write would be left."""
    monkeypatch.setattr("odradek_metadata_quorum.process._DISK_WAIT_S_MAX", 0.1)
    async with controllers(tmp_path, 3) as found:
        active = await found.active()
        follower = found.processes[(active + 1) % 3]
        log = follower._quorum._voter.log
        write, mended = log.write, threading.Event()

        def hang(what: LogWrite) -> int:
            assert mended.wait(WAIT_S)
            return write(what)

        monkeypatch.setattr(log, "write", hang)
        assert (await found.controller(active).Register(register_request())).error_code == 0
        await until(lambda: "data directory" in follower._why_not_ready(), "trouble that is told")
        # On a slow machine, one of the active controller's own writes may take longer than this limit, too.
        await until(lambda: not found.processes[active]._why_not_ready(), "the other's readiness")
        assert "data directory" in follower._why_not_ready()
        mended.set()
        await until(lambda: not follower._why_not_ready(), "readiness")


async def test_bytes_of_no_protocol_do_no_harm(tmp_path: Path) -> None:
    async with controllers(tmp_path) as found:
        await found.active()
        planted = tmp_path / "planted"
        payload = b"cposix\nsystem\n(S'touch " + str(planted).encode() + b"'\ntR."
        for port in (found.rpc_ports[0], found.raft_ports[0]):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(len(payload).to_bytes(4, "little") + payload)
            writer.write_eof()
            async with asyncio.timeout(WAIT_S):
                await reader.read()
            writer.close()
        assert not planted.exists()
        assert (await found.controller(0).Register(register_request())).error_code == 0


async def test_with_tls_peers_are_who_their_certificates_say(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "ca")
    authority.create(common_name="test", days=1)
    ca = tmp_path / "ca" / "ca.crt"
    stranger = CertificateAuthority(tmp_path / "other-ca")
    stranger.create(common_name="other", days=1)
    certificates = {
        name: authority.issue(name, hosts=["127.0.0.1", "localhost"], days=1)
        for name in ("controller-0", "broker-1", "broker-2", "alice")
    }
    certificates["stranger"] = stranger.issue("broker-1", hosts=["127.0.0.1"], days=1)
    certificate, key = certificates["controller-0"]
    async with controllers(
        tmp_path,
        **{
            "ssl.certificate.location": certificate,
            "ssl.key.location": key,
            "ssl.ca.location": ca,
        },
    ) as found:
        await found.active()

        async def call(name: str | None, broker_id: int = 1) -> grpc.StatusCode:
            pair = certificates.get(name or "")
            credentials = grpc.ssl_channel_credentials(
                root_certificates=ca.read_bytes(),
                private_key=pair[1].read_bytes() if pair else None,
                certificate_chain=pair[0].read_bytes() if pair else None,
            )
            target = f"127.0.0.1:{found.rpc_ports[0]}"
            async with grpc.aio.secure_channel(target, credentials) as channel:
                service = controller_service_pb2_grpc.ControllerServiceStub(channel)
                try:
                    answer = await service.Register(register_request(broker_id), timeout=WAIT_S)
                except grpc.aio.AioRpcError as error:
                    return error.code()
                assert isinstance(answer, pb.RegisterResponse)
                assert answer.error_code == 0
                return grpc.StatusCode.OK

        assert await call("broker-1") is grpc.StatusCode.OK
        assert await call("broker-2") is grpc.StatusCode.PERMISSION_DENIED
        assert await call("alice") is grpc.StatusCode.PERMISSION_DENIED
        assert await call(None) is grpc.StatusCode.UNAVAILABLE
        assert await call("stranger") is grpc.StatusCode.UNAVAILABLE
        async with grpc.aio.insecure_channel(f"127.0.0.1:{found.rpc_ports[0]}") as channel:
            service = admin_service_pb2_grpc.AdminServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError):
                await service.DescribeCluster(admin.DescribeClusterRequest(), timeout=2)


def command_line(found: Controllers, directory: Path, *flags: str) -> list[str]:
    given = {
        "node.id": 0,
        "cluster.id": "c",
        "log.dirs": directory,
        "controller.quorum.voters": f"0@127.0.0.1:{found.raft_ports[0]}",
        "listeners": f"RAFT://127.0.0.1:{found.raft_ports[0]},"
        f"CONTROLLER://127.0.0.1:{found.rpc_ports[0]}",
        "storage.format.if.empty": "true",
    }
    assignments = [one for name, value in given.items() for one in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "odradek_metadata_quorum", *flags, *assignments]


def damage_the_vote(directory: Path, _found: Controllers) -> None:
    format_storage(directory, cluster_id="c", node_id=0, voters=[0])
    (directory / VOTE_FILE_NAME).write_bytes(bytes(8192))


def lose_the_log(directory: Path, _found: Controllers) -> None:
    format_storage(directory, cluster_id="c", node_id=0, voters=[0])
    for segment in directory.glob("log-*"):
        segment.unlink()


@contextmanager
def taken_raft_port(found: Controllers) -> Iterator[None]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        # A port that was free before may be some connection's by now.
        found.raft_ports[0] = taken.getsockname()[1]
        yield


async def complaint(found: Controllers, directory: Path) -> str:
    """Start a controller that cannot run, and return the one line that it prints."""
    process = await asyncio.create_subprocess_exec(
        *command_line(found, directory),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WAIT_S):
            _, told = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 1
    assert b"Traceback" not in told, told.decode()
    return told.decode()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_the_vote, "vote: both copies of the record are damaged"),
        (lose_the_log, "the directory is formatted, but the log has no segment"),
    ],
)
async def test_damaged_storage_is_told_in_a_line(
    tmp_path: Path, damage: Callable[[Path, Controllers], None], said: str
) -> None:
    found = Controllers(tmp_path)
    damage(tmp_path / "data", found)
    assert said in await complaint(found, tmp_path / "data")


async def test_a_taken_raft_port_is_told_in_a_line(tmp_path: Path) -> None:
    found = Controllers(tmp_path)
    with taken_raft_port(found):
        told = await complaint(found, tmp_path / "data")
    assert f"port {found.raft_ports[0]} on 127.0.0.1 is in use (listener RAFT)" in told


async def test_the_process_tells_when_it_is_ready_and_ends_with_its_parent(tmp_path: Path) -> None:
    found = Controllers(tmp_path)
    process = await asyncio.create_subprocess_exec(
        *command_line(found, tmp_path / "data", "--exit-with-parent"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            ready = json.loads(await process.stdout.readline())
            assert ready["event"] == "ready"
            assert ready["CONTROLLER"] == found.rpc_ports[0]
            process.stdin.close()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_bad_setting_ends_it_with_a_message(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "odradek_metadata_quorum",
        "--set",
        "node.idd=0",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ},
    )
    async with asyncio.timeout(WAIT_S):
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"did you mean node.id" in errors
