"""The network between voters: refused peers, dead connections, and exceptions in the handler of a message."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odradek.embedded import free_ports
from odradek_metadata_quorum.errors import InsecureListener
from odradek_metadata_quorum.network import transport, wire
from odradek_metadata_quorum.network.peer_link import client_context, hello
from odradek_metadata_quorum.network.wire import Message
from odradek_metadata_quorum.raft.quorum import Quorum
from odradek_metadata_quorum.settings import QuorumTls
from odradek_metadata_quorum.storage.data_directory import format_storage
from tests.integration.quorum.certificates import CertificateAuthority
from tests.integration.quorum.voter_networks import (
    WAIT_S_MAX,
    Recorded,
    a_vote,
    running,
    settings_of,
    until,
)


async def test_voters_with_their_names_in_the_san_reach_each_other(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "tls")
    by_uri = authority.issue("x", uris=("odradek://controller/2",))
    ports = free_ports(2)
    first = settings_of(1, ports, tmp_path, tls=authority.issue_controller(1))
    second = settings_of(2, ports, tmp_path, tls=by_uri)
    async with running(first, second) as (one, two):
        await until(lambda: one.connected and two.connected)
        one.network.send_frame(2, a_vote(7))
        await until(lambda: two.messages)
        assert two.messages == [(1, {"type": wire.RESPONSE_VOTE, "term": 7})]


class SlowResolver:
    """Resolves one name slowly, as when the first of two name servers does not respond."""

    def __init__(self, slow_name: str) -> None:
        self._slow_name = slow_name
        self._resolve = socket.getaddrinfo
        self._never = threading.Event()
        self._asking = 0
        self.asking_max = 0

    def __call__(self, host: Any, *arguments: Any, **named: Any) -> Any:
        if host != self._slow_name:
            return self._resolve(host, *arguments, **named)
        self._asking += 1
        self.asking_max = max(self.asking_max, self._asking)
        self._never.wait(0.3)
        self._asking -= 1
        return self._resolve("127.0.0.1", *arguments, **named)


async def test_a_resolver_that_is_slower_than_a_connection_may_be_delays_it_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookups that timed out occupy the threads that all lookups share."""
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT_S", 0.1)
    resolver = SlowResolver("controller-2.example")
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    ports = free_ports(2)
    voters = {1: ("127.0.0.1", ports[0]), 2: ("controller-2.example", ports[1])}
    first, second = (replace(settings_of(n, ports, tmp_path), voters=voters) for n in (1, 2))
    async with running(first, second) as (one, _):
        await until(lambda: one.connected)
    assert resolver.asking_max == 1


async def test_a_controller_that_cannot_be_reached_for_a_while_is_told_once_with_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "UNREACHED_WARNING_S", 0.05)
    monkeypatch.setattr(transport, "REDIAL_PAUSE_S", 0.01)
    ports = free_ports(3)
    one, two = (settings_of(n, ports, tmp_path) for n in (1, 2))

    def of_the_third() -> list[dict[str, Any]]:
        """Return the warnings about the controller that is not there. On a slow machine, the other two may need longer
        than UNREACHED_WARNING_S to reach each other, and say so as well.
        """
        fields = (record.__dict__["odradek_fields"] for record in caplog.records)
        return [one for one in fields if one["peer_id"] == 3]

    async with running(one, two) as (first, _):
        await until(lambda: first.connected and len(of_the_third()) >= 2)
    told = of_the_third()
    assert [fields["address"] for fields in told] == [f"127.0.0.1:{ports[2]}"] * 2, (
        "once by each of the two"
    )
    assert "111" in told[0]["error"]


async def test_something_else_that_listens_at_a_controllers_address_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "UNREACHED_WARNING_S", 0.05)
    ports = free_ports(2)
    other = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", ports[1])
    async with other, running(settings_of(1, ports, tmp_path)):
        await until(lambda: caplog.records)
    assert "did not send a hello message" in caplog.records[0].__dict__["odradek_fields"]["error"]


def wrong_certificates(authority: CertificateAuthority, other: CertificateAuthority) -> list[Any]:
    return [
        authority.issue("controller-2"),  # the name is in the CN only
        authority.issue("controller-2", names=("controller-3",)),
        authority.issue("controller-2", names=("controller-2",), expired=True),
        authority.issue("broker-2", uris=("odradek://broker/2",)),
        replace(other.issue_controller(2), ca_path=authority.path),
    ]


@pytest.mark.parametrize("number", range(5))
async def test_a_certificate_that_does_not_name_the_voter_is_refused_both_ways(
    tmp_path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    authority = CertificateAuthority(tmp_path / "tls")
    stranger: QuorumTls = wrong_certificates(
        authority, CertificateAuthority(tmp_path / "other", "other-ca")
    )[number]
    ports = free_ports(2)
    first = settings_of(1, ports, tmp_path, tls=authority.issue_controller(1))
    second = settings_of(2, ports, tmp_path, tls=stranger)

    def refused_where_it_was_dialled() -> bool:
        fields = [getattr(record, "odradek_fields", {}) for record in caplog.records]
        return any(str(one.get("peer")).startswith("controller 2") for one in fields)

    async with running(first, second) as (one, _):
        await until(refused_where_it_was_dialled)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", ports[0], ssl=client_context(stranger)
            )
            writer.write(wire.encode(hello("c", 2, 1, short=False)) + a_vote(7))
            async with asyncio.timeout(WAIT_S_MAX):
                while await reader.read(1000):
                    pass
        assert one.connected == []
        assert one.messages == []


async def test_without_a_certificate_nobody_gets_past_the_handshake(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "tls")
    ports = free_ports(2)
    async with running(settings_of(1, ports, tmp_path, tls=authority.issue_controller(1))) as (
        one,
    ):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE

        async def intrude() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[0], ssl=context)
            try:
                writer.write(wire.encode(hello("c", 2, 1, short=False)) + a_vote(9))
                await reader.readexactly(1)
            finally:
                writer.close()

        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await intrude()
        assert one.messages == []


@pytest.mark.parametrize(
    "opening",
    [
        pickle.dumps({"type": "status"}),
        b"\xff\xff\xff\xff",
        wire.LENGTH.pack(1 << 20) + b"x",
        a_vote(9),
        wire.encode(hello("another", 2, 1, short=False)) + a_vote(9),
        wire.encode(hello("c", 9, 1, short=False)) + a_vote(9),
        wire.encode(hello("c", 2, 3, short=False)) + a_vote(9),
        wire.encode({**hello("c", 2, 1, short=False), "version": 99}) + a_vote(9),
        wire.encode(hello("c", 2, 1, short=False))
        + wire.encode(hello("c", 2, 1, short=False))[:4]
        + b"\xc1" * 60
        + a_vote(9),
    ],
)
async def test_strangers_and_damaged_frames_are_closed_and_deliver_nothing(
    tmp_path: Path, opening: bytes
) -> None:
    ports = free_ports(2)
    async with running(settings_of(1, ports, tmp_path)) as (one,):
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[0])
        writer.write(opening)
        async with asyncio.timeout(WAIT_S_MAX):
            with contextlib.suppress(ConnectionError):
                while await reader.read(1000):
                    pass
        writer.close()
        assert one.messages in ([], [(2, {"type": "hello"})])


async def test_a_caller_who_says_nothing_is_closed_in_time(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "tls")
    ports = free_ports(2)
    async with running(settings_of(1, ports, tmp_path, tls=authority.issue_controller(1))):
        silent_tcp, tcp_writer = await asyncio.open_connection("127.0.0.1", ports[0])
        silent_tls, tls_writer = await asyncio.open_connection(
            "127.0.0.1", ports[0], ssl=client_context(authority.issue_controller(2))
        )
        async with asyncio.timeout(WAIT_S_MAX):
            for reader in (silent_tcp, silent_tls):
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
        tcp_writer.close()
        tls_writer.close()


class Blackhole:
    """A TCP relay that can stop relaying without closing anything: a half-open link."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._open = asyncio.Event()
        self._open.set()
        self.port = 0

    async def __aenter__(self) -> Blackhole:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.set()
        self._server.close()

    def stop(self) -> None:
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._target_port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while True:
                    await self._open.wait()
                    data = await source.read(65536)
                    await self._open.wait()
                    if not data:
                        return
                    sink.write(data)
                    await sink.drain()
            except ConnectionError:
                return
            finally:
                sink.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pump(reader, to_writer))
            tasks.create_task(pump(to_reader, writer))


async def test_a_half_open_link_is_noticed_its_queue_is_bounded_and_dies_with_it(
    tmp_path: Path,
) -> None:
    ports = free_ports(2)
    async with Blackhole(ports[1]) as blackhole:
        first = replace(
            settings_of(1, ports, tmp_path),
            voters={1: ("127.0.0.1", ports[0]), 2: ("127.0.0.1", blackhole.port)},
        )
        async with running(first, settings_of(2, ports, tmp_path)) as (one, two):
            await until(lambda: one.connected)
            one.network.send_frame(2, a_vote(1))
            await until(lambda: two.messages)
            blackhole.stop()
            snapshot = {
                "type": wire.INSTALL_SNAPSHOT,
                "term": 2,
                "offset": 1,
                "epoch": 1,
                "total": 1 << 20,
                "crc": 0,
                "position": 0,
                "data": bytes(256 << 10),
            }
            frame = wire.encode(snapshot)
            for _ in range(100):  # 25 MiB
                one.network.send_frame(2, frame)
            assert one.network.queued_bytes(2) <= (4 << 20) + len(frame)
            await until(lambda: one.disconnected)
            assert one.network.queued_bytes(2) == 0
            two.messages.clear()
            blackhole.go_on()
            await until(lambda: len(one.connected) == 2)
            one.network.send_frame(2, a_vote(3))
            await until(lambda: (1, {"type": wire.RESPONSE_VOTE, "term": 3}) in two.messages)
            await asyncio.sleep(0.3)
            assert two.messages[-1][1]["type"] == wire.RESPONSE_VOTE, "the old link was cut off"


async def test_a_new_connection_of_a_voter_ends_the_old_one(tmp_path: Path) -> None:
    ports = free_ports(2)
    async with running(settings_of(1, ports, tmp_path)) as (one,):
        old_reader, old = await asyncio.open_connection("127.0.0.1", ports[0])
        old.write(wire.encode(hello("c", 2, 1, short=False)) + a_vote(1))
        await until(lambda: len(one.messages) == 1)
        new_reader, new = await asyncio.open_connection("127.0.0.1", ports[0])
        new.write(wire.encode(hello("c", 2, 1, short=False)) + a_vote(2))
        await until(lambda: len(one.messages) == 2)
        with contextlib.suppress(ConnectionError):
            old.write(a_vote(3))
            while await old_reader.read(1000):
                pass
        await asyncio.sleep(0.05)
        assert [message["term"] for _, message in one.messages] == [1, 2]
        new.close()
        old.close()
        del new_reader


async def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "tls")
    tls = authority.issue_controller(1)
    ports = free_ports(2)

    async def shown_serial() -> str:
        _, writer = await asyncio.open_connection(
            "127.0.0.1", ports[0], ssl=client_context(authority.issue_controller(2))
        )
        try:
            return str(writer.get_extra_info("peercert")["serialNumber"])
        finally:
            writer.close()

    async with running(settings_of(1, ports, tmp_path, tls=tls)):
        first = await shown_serial()
        assert await shown_serial() == first
        renewed = authority.issue_controller(1)
        tls.key_path.write_bytes(renewed.key_path.read_bytes())
        assert await shown_serial() == first, "a half-written pair changes nothing"
        tls.certificate_path.write_bytes(renewed.certificate_path.read_bytes())
        assert await shown_serial() != first


async def test_callers_who_never_finish_their_handshake_are_forgotten(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "tls")
    ports = free_ports(2)
    async with running(settings_of(1, ports, tmp_path, tls=authority.issue_controller(1))) as (
        one,
    ):
        writers = []
        for _ in range(100):
            _, writer = await asyncio.open_connection("127.0.0.1", ports[0])
            writer.write(b"GET / HTTP/1.1")
            writers.append(writer)
        await asyncio.sleep(0.1)
        assert len(one.network._ungreeted) <= 64
        await until(lambda: not one.network._ungreeted)
        for writer in writers:
            writer.close()


async def test_a_listener_beyond_loopback_needs_tls_or_the_word(tmp_path: Path) -> None:
    ports = free_ports(1)
    settings = replace(settings_of(1, ports, tmp_path), listen_host="0.0.0.0")
    with pytest.raises(InsecureListener, match="--insecure"):
        await Recorded(settings).network.listen()
    allowed = Recorded(replace(settings, insecure=True))
    await allowed.network.listen()
    await allowed.network.close()


class _Failing:
    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        raise ValueError("poison")

    def snapshot(self) -> Callable[[], bytes]:
        raise AssertionError

    def restore(self, offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        raise AssertionError


async def start_single(tmp_path: Path, machine: Any) -> tuple[Quorum, list[str]]:
    format_storage(tmp_path / "data-1", cluster_id="c", node_id=1, voters=[1, 2])
    fatal: list[str] = []
    quorum = Quorum(
        settings_of(1, free_ports(2), tmp_path),
        machine,
        fatal=lambda reason, error: fatal.append(f"{reason}: {error!r}"),
    )
    await quorum.start()
    return quorum, fatal


async def test_a_bug_in_a_message_handler_ends_the_process_not_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorum, fatal = await start_single(tmp_path, _Failing())

    def buggy(peer_id: int, message: Message) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(quorum._voter.node, "receive", buggy)
    _, writer = await asyncio.open_connection("127.0.0.1", quorum.listen_port)
    writer.write(wire.encode(hello("c", 2, 1, short=False)) + a_vote(1))
    await until(lambda: fatal)
    assert "KeyError" in fatal[0]
    writer.close()
    await quorum.stop()


async def test_a_task_that_dies_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quorum, fatal = await start_single(tmp_path, _Failing())

    def buggy() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(quorum._voter.node, "step", buggy)
    await until(lambda: any("task of the quorum failed" in reason for reason in fatal))
    await quorum.stop()
