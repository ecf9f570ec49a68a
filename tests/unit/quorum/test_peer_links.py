"""Connections between two voters: which peers are accepted or refused and why, and what each side may send."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from odradek_metadata_quorum.network.peer_link import (
    HELLO_BYTES_MAX,
    IncomingLink,
    OutgoingLink,
    hello,
)
from odradek_metadata_quorum.network.wire import LENGTH, PING, PONG, Message, encode

VOTERS = "1,2,3"
FRAME_BYTES_MAX = 1 << 20


class Wire:
    """A transport that stores the bytes that are written to it."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_over = False
        self.buffered = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def take(self) -> bytes:
        data, self.written = bytes(self.written), bytearray()
        return data

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.is_over

    def abort(self) -> None:
        self.is_over = True

    close = abort

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> None: ...


class Ends:
    """The two ends of a connection that voter 1 has opened to voter 2."""

    def __init__(self, *, voters: str = VOTERS) -> None:
        self.messages: list[tuple[int, Message]] = []
        self.lost: list[IncomingLink] = []
        self.dialler = OutgoingLink(
            cluster_id="c",
            node_id=1,
            peer_id=2,
            voters=voters,
            frame_bytes_max=FRAME_BYTES_MAX,
            queue_bytes_max=100,
            tls=False,
            short_hello=False,
        )
        self.acceptor = IncomingLink(
            cluster_id="c",
            node_id=2,
            peer_ids=frozenset({1, 3}),
            voters=VOTERS,
            known_mismatch=lambda _: "",
            frame_bytes_max=FRAME_BYTES_MAX,
            tls=False,
            on_greeted=lambda _: None,
            on_message=lambda peer_id, message: self.messages.append((peer_id, message)),
            on_lost=self.lost.append,
            advice=lambda: "connect elsewhere",
        )
        self.wires = (Wire(), Wire())
        for link, wire in zip((self.dialler, self.acceptor), self.wires, strict=True):
            link.connection_made(cast(asyncio.Transport, wire))

    def exchange(self, chunk: int = FRAME_BYTES_MAX) -> None:
        """Carry the written bytes to the other side, in pieces, until both sides send nothing more."""
        while any(wire.written for wire in self.wires):
            for wire, other in zip(self.wires, (self.acceptor, self.dialler), strict=True):
                data = wire.take()
                for at in range(0, len(data), chunk):
                    other.data_received(data[at : at + chunk])


@pytest.mark.parametrize("chunk", [1, 3, 7, FRAME_BYTES_MAX])
async def test_a_dialler_is_ready_once_it_was_greeted(chunk: int) -> None:
    ends = Ends()
    assert not ends.dialler.ready.done()
    ends.exchange(chunk)
    assert ends.dialler.greeted
    assert ends.acceptor.greeted
    assert ends.dialler.ready.done()
    assert ends.acceptor.peer_id == 1
    ends.dialler.send({"type": PING, "nonce": 7})
    ends.dialler.send({"type": PING, "nonce": 8})
    ends.exchange(chunk)
    assert ends.dialler.greeted, ends.dialler.refusal


async def test_a_system_without_a_timeout_for_unacknowledged_bytes_has_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as connection:
        monkeypatch.setattr(Wire, "get_extra_info", lambda _, name: connection)
        monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
        ends = Ends()
        ends.exchange()
        assert ends.dialler.greeted
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_dialler_that_gave_up_waiting_is_greeted_without_an_error() -> None:
    ends = Ends()
    ends.dialler.ready.cancel()
    ends.exchange()
    assert ends.dialler.greeted


@pytest.mark.parametrize(
    "message",
    [
        hello("c", 2, 1, voters=VOTERS, short=False),
        {"type": PING, "nonce": 1},
    ],
)
async def test_an_acceptor_sends_one_hello_and_pongs_and_nothing_else(message: Message) -> None:
    ends = Ends()
    ends.exchange()
    ends.dialler.data_received(encode({"type": PONG, "nonce": 1}))
    assert ends.dialler.refusal is None
    ends.dialler.data_received(encode(message))
    assert "may send only one hello and then pongs" in (ends.dialler.refusal or "")
    assert ends.wires[0].is_over


async def test_a_pong_before_the_hello_is_refused() -> None:
    ends = Ends()
    ends.dialler.data_received(encode({"type": PONG, "nonce": 1}))
    assert "may send only one hello and then pongs" in (ends.dialler.refusal or "")


async def test_the_first_reason_of_a_refusal_stays() -> None:
    ends = Ends()
    ends.dialler.refuse("the certificate is another's")
    ends.dialler.refuse("the connection ended")
    assert ends.dialler.refusal == "the certificate is another's"
    other = Ends()
    other.acceptor.refuse_after(hello("c", 2, 1, short=True), "other voters")
    other.acceptor.refuse("the connection ended")
    assert other.acceptor.refusal == "other voters"


async def test_voters_that_count_others_learn_each_others_set_and_part() -> None:
    ends = Ends(voters="1,2")
    ends.exchange()
    for link in (ends.dialler, ends.acceptor):
        assert not link.greeted
        assert "two leaders could be elected" in link.mismatch
        assert link.refusal == link.mismatch


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (hello("c", 9, 2, short=True), "controller 9 is not a voter"),
        (hello("other", 1, 2, short=True), "cluster"),
        ({"type": PING, "nonce": 1}, "before hello"),
    ],
)
async def test_a_stranger_is_refused(message: Message, reason: str) -> None:
    ends = Ends()
    ends.acceptor.data_received(encode(message))
    assert reason in (ends.acceptor.refusal or "")
    assert ends.messages == []
    assert ends.wires[1].is_over


@pytest.mark.parametrize(
    ("is_greeted", "size"), [(False, HELLO_BYTES_MAX), (True, FRAME_BYTES_MAX)]
)
async def test_a_frame_has_a_bound_that_is_small_before_the_hello(
    is_greeted: bool, size: int
) -> None:
    ends = Ends()
    if is_greeted:
        ends.exchange()
    ends.acceptor.data_received(LENGTH.pack(size))
    assert ends.acceptor.refusal is None
    other = Ends()
    if is_greeted:
        other.exchange()
    other.acceptor.data_received(LENGTH.pack(size + 1))
    assert f"a frame of {size + 1} bytes" in (other.acceptor.refusal or "")


async def test_nothing_is_queued_beyond_the_bound_and_nothing_is_written_after_the_end() -> None:
    ends = Ends()
    ends.exchange()
    frame: Any = encode({"type": PING, "nonce": 1})
    ends.wires[0].buffered = 100
    ends.dialler.offer_frame(frame)
    assert ends.wires[0].take() == frame
    ends.wires[0].buffered = 101
    ends.dialler.offer_frame(frame)
    assert ends.wires[0].take() == b""
    ends.wires[0].buffered = 0
    ends.dialler.abort()
    ends.dialler.offer_frame(frame)
    assert ends.wires[0].take() == b""


async def test_an_end_is_reported_once_and_ends_the_wait() -> None:
    ends = Ends()
    ends.dialler.connection_lost(None)
    ends.acceptor.connection_lost(None)
    assert ends.dialler.closed.done()
    assert ends.dialler.ready.cancelled()
    assert ends.lost == [ends.acceptor]
    ends.acceptor.data_received(encode(hello("c", 1, 2, voters=VOTERS, short=False)))
    assert not ends.acceptor.greeted, "a message is taken after the end"


@pytest.mark.parametrize("chunk", [1, 1000])
async def test_a_client_of_brokers_is_told_where_to_connect(chunk: int) -> None:
    ends = Ends()
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    wire = ends.wires[1]
    wire.take()
    for begin in range(0, len(preface), chunk):
        if not wire.is_over:
            ends.acceptor.data_received(preface[begin : begin + chunk])
    assert wire.is_over
    assert b"connect elsewhere" in wire.take()
    assert ends.acceptor.refusal == "the client speaks gRPC: connect elsewhere"
