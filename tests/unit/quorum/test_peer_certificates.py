"""Which controller a certificate names, and what a voter does if a peer's certificate names another
one.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from odradek_metadata_quorum.network.peer_link import OutgoingLink, certified_ids, hello
from odradek_metadata_quorum.network.wire import HELLO, Message, decode, encode
from tests.unit.quorum.test_peer_links import FRAME_BYTES_MAX, VOTERS, Ends, Wire


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ((), set()),
        ((("DNS", "controller-2"),), {2}),
        ((("DNS", "controller-2"), ("URI", "odradek://controller/13")), {2, 13}),
        ((("DNS", "controller-02"),), {2}),
        ((("URI", "controller-2"),), set()),
        ((("DNS", "odradek://controller/2"),), set()),
        ((("DNS", "controller-"), ("DNS", "controller-two")), set()),
        ((("DNS", "controller-\u0662"),), set()),  # a digit of another script
        ((("DNS", "my-controller-2"),), set()),
        ((("email", "controller-2"),), set()),
    ],
)
def test_a_certificate_names_controllers_in_two_ways(
    names: tuple[tuple[str, str], ...], ids: set[int]
) -> None:
    assert certified_ids({"subjectAltName": names}) == ids


def test_no_certificate_names_nobody() -> None:
    assert certified_ids(None) == frozenset()
    assert certified_ids({}) == frozenset()


class TlsWire(Wire):
    """A transport whose peer has shown a certificate."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self._certificate = {"subjectAltName": tuple(("DNS", name) for name in names)}

    def get_extra_info(self, name: str) -> Any:
        return self._certificate if name == "peercert" else None


def dialled(wire: TlsWire) -> OutgoingLink:
    link = OutgoingLink(
        cluster_id="c",
        node_id=1,
        peer_id=2,
        voters=VOTERS,
        frame_bytes_max=FRAME_BYTES_MAX,
        queue_bytes_max=100,
        tls=True,
        short_hello=False,
    )
    link.connection_made(cast(asyncio.Transport, wire))
    return link


async def test_a_dialler_says_nothing_to_a_peer_whose_certificate_is_anothers() -> None:
    for names in ((), ("controller-3",), ("broker-2",)):
        wire = TlsWire(*names)
        link = dialled(wire)
        assert link.refusal == "the peer's certificate does not name controller-2"
        assert wire.written == b""
        assert wire.is_over


async def test_a_dialler_greets_a_peer_whose_certificate_is_its_own() -> None:
    wire = TlsWire("controller-3", "controller-2")
    link = dialled(wire)
    assert link.refusal is None
    assert decode(bytes(wire.written[4:]))["type"] == HELLO


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (hello("other", 2, 1, voters=VOTERS, short=False), "cluster"),
        (hello("c", 3, 1, voters=VOTERS, short=False), "3"),
        (hello("c", 2, 3, voters=VOTERS, short=False), "controller 3"),
    ],
)
async def test_a_dialler_refuses_another_controller_than_it_dialled(
    answer: Message, reason: str
) -> None:
    ends = Ends()
    ends.dialler.data_received(encode(answer))
    assert reason in (ends.dialler.refusal or "")
    assert not ends.dialler.greeted
    assert not ends.dialler.ready.done() or ends.dialler.ready.cancelled()
    assert ends.wires[0].is_over
