"""Messages between voters survive encoding and decoding, invalid bytes are refused, and nothing is ever unpickled."""

from __future__ import annotations

import contextlib
import pickle
import random

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek_metadata_quorum.errors import WireError
from odradek_metadata_quorum.network import peer_link, wire
from odradek_metadata_quorum.network.wire import Message, decode, encode

NUMBER = st.integers(0, 2**63 - 1)
STRATEGIES = {
    int: NUMBER,
    bool: st.booleans(),
    bytes: st.binary(max_size=100),
    str: st.text(max_size=20),
}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    name = draw(st.sampled_from(sorted(wire._TABLE)))
    fields = wire._TABLE[name][1]
    if name != wire.APPEND_ENTRIES:
        return {"type": name, **{field: draw(STRATEGIES[kind]) for field, kind in fields}}
    previous = draw(st.integers(0, 2**40))
    terms = sorted(draw(st.lists(st.integers(1, 2**40), max_size=5)))
    return {
        "type": name,
        "term": (terms[-1] if terms else 1) + draw(st.integers(0, 3)),
        "commit_index": draw(NUMBER),
        "prevLogIdx": previous,
        "prevLogTerm": draw(st.integers(0, terms[0] if terms else 1)),
        "entries": [
            (draw(st.binary(min_size=1, max_size=20)), previous + 1 + number, term)
            for number, term in enumerate(terms)
        ],
    }


@given(messages())
def test_every_message_survives_the_wire(message: Message) -> None:
    frame = encode(message)
    assert wire.LENGTH.unpack(frame[:4])[0] == len(frame) - 4
    assert decode(frame[4:]) == message


@given(messages(), st.randoms(use_true_random=False))
def test_damaged_frames_are_a_message_or_a_wire_error(message: Message, rng: random.Random) -> None:
    body = bytearray(encode(message)[4:])
    for _ in range(rng.randint(1, 3)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    del body[rng.randint(0, len(body)) :]
    with contextlib.suppress(WireError):
        decode(bytes(body))


@pytest.mark.parametrize(
    "values",
    [
        {},
        [],
        7,
        ["append_entries"],
        [99, 1],
        [4],
        [4, -1],
        [4, True],
        [4, 2**63],
        [20, 1, "c", 1, 2, "no version"],
        [1, 1, 1, 1, 1, [b"\x00"], []],
        [1, 1, 1, 1, 1, [b""], [1]],
        [1, 1, 1, 1, 1, ["text"], [1]],
        [1, 1, 1, 1, 1, [b"\x00", b"\x00"], [1, 0]],
        [1, 1, 1, 1, 0, [b"\x00"], [2]],
        [7, 1, 1, 1, 1, 1, 0, "text"],
    ],
)
def test_what_does_not_fit_the_table_is_refused(values: object) -> None:
    with pytest.raises(WireError):
        decode(msgpack.packb(values))


def test_fields_that_a_later_version_appends_are_ignored() -> None:
    assert decode(msgpack.packb([4, 1, "later", [2]])) == {"type": wire.RESPONSE_VOTE, "term": 1}
    hello = {"type": wire.HELLO, "version": 1, "cluster_id": "c", "node_id": 1, "target_id": 2}
    assert decode(msgpack.packb([20, 1, "c", 1, 2])) == hello
    assert decode(msgpack.packb([20, 1, "c", 1, 2, 3, "1,2", b"later"])) == {
        **hello,
        "version_max": 3,
        "voters": "1,2",
    }
    assert encode({**hello, "version_max": 3})[4:] == msgpack.packb([20, 1, "c", 1, 2, 3])


def test_two_voters_speak_the_highest_version_that_both_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each row has the versions of one voter, those of its peer, and the version that they agree on."""
    for (low, high), (peer_low, peer_high), agreed in (
        ((1, 1), (1, None), 1),
        ((1, 1), (1, 2), 1),
        ((1, 2), (1, None), 1),
        ((1, 2), (1, 2), 2),
        ((2, 3), (1, 2), 2),
        ((2, 3), (1, None), None),
        ((1, 1), (2, 3), None),
    ):
        monkeypatch.setattr(peer_link, "PROTOCOL_VERSION_MIN", low)
        monkeypatch.setattr(peer_link, "PROTOCOL_VERSION_MAX", high)
        message = {**peer_link.hello("c", 2, 1, short=peer_high is None), "version": peer_low}
        if peer_high is not None:
            message["version_max"] = peer_high
        assert peer_link.agreed_version(message) == agreed
        refusal = peer_link.hello_refusal(message, "c", 2, 1)
        assert (refusal is None) == (agreed is not None)
        assert refusal is None or "upgrade the controller with the older release" in refusal


def test_a_pickle_is_no_message() -> None:
    with pytest.raises(WireError):
        decode(pickle.dumps({"type": "append_entries"}))


class _Collected(peer_link.FrameProtocol):
    """Stores the messages that it is sent."""

    def __init__(self) -> None:
        super().__init__(frame_bytes_max=1 << 20, tls=False)
        self.messages: list[Message] = []

    def received(self, message: Message) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 64, 10_000])
async def test_messages_arrive_whole_however_their_bytes_are_cut(piece_bytes: int) -> None:
    sent: list[Message] = [{"type": wire.PING, "nonce": number} for number in range(20)]
    data = b"".join(map(encode, sent))
    protocol = _Collected()
    for start in range(0, len(data), piece_bytes):
        protocol.data_received(data[start : start + piece_bytes])
    assert protocol.messages == sent
    assert protocol.refusal is None
