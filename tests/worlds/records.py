"""Hypothesis strategies for records, batches and damaged batches."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from odradek_protocol.records import Compression, Record

INT64_MAX = (1 << 63) - 1

payloads = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.binary(min_size=60, max_size=140),  # lengths from 64 on take two bytes (zigzag varint)
    st.builds(bytes.__mul__, st.binary(min_size=1, max_size=3), st.integers(0, 5_000)),
)
header_keys = st.one_of(st.sampled_from(["", "trace-id", "ключ", "🗝"]), st.text(max_size=12))
headers = st.lists(st.tuples(header_keys, payloads), max_size=4).map(tuple)
timestamps_ms = st.one_of(
    st.just(-1), st.integers(1_700_000_000_000, 1_700_000_100_000), st.integers(0, 1 << 61)
)
compressions = st.sampled_from(Compression)


@st.composite
def records(draw: st.DrawFn, *, gaps: bool = False, min_size: int = 1) -> list[Record]:
    """Draw records in order of their offsets; if `gaps` is set, with gaps as compaction leaves
    them.
    """
    drawn = draw(
        st.lists(
            st.tuples(payloads, payloads, headers, timestamps_ms, st.integers(1, 1_000)),
            min_size=min_size,
            max_size=12,
        )
    )
    found: list[Record] = []
    offset = -1
    for key, value, header_list, timestamp_ms, step in drawn:
        offset += step if gaps else 1
        found.append(Record(key, value, header_list, timestamp_ms, offset))
    return found


@dataclass(frozen=True, slots=True)
class Damage:
    """A change of some bytes: the `removed` bytes from `at` on are replaced by `inserted`.

    `at` is a fraction of the length, so that it fits data of any length.
    """

    at: float
    removed: int
    inserted: bytes

    def apply(self, data: bytes) -> bytes:
        start = int(self.at * len(data))
        return data[:start] + self.inserted + data[start + self.removed :]


damages = st.builds(
    Damage,
    at=st.floats(0, 0.999),
    removed=st.integers(0, 8),
    inserted=st.one_of(
        st.binary(max_size=8),
        st.sampled_from([b"\xff" * 5, b"\xff" * 10, b"\x80" * 4, b"\xff\xff\xff\xff\x0f", b"\x01"]),
    ),
)
