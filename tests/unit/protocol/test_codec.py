"""Metadata records that are encoded can be decoded, damage always raises the same error, and
versions can be mixed.
"""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from odradek_protocol.identity import (
    BrokerId,
    ControllerId,
    IncarnationId,
    MetadataIncarnationId,
    PartitionIndex,
    TopicId,
)
from odradek_protocol.metadata import codec
from odradek_protocol.metadata.codec import (
    MetadataDecodeError,
    decode_batch,
    decode_record,
    encode_batch,
    encode_record,
)
from odradek_protocol.metadata.features import METADATA_VERSION_MAX
from odradek_protocol.metadata.records import (
    RECORD_TYPES,
    ClientQuota,
    MetadataBatch,
    MetadataIncarnation,
    MetadataRecord,
    NewerProgramNeeded,
    NoOp,
    Partition,
    PartitionChange,
    RegisterBroker,
    RegisterController,
    RestartClass,
    ScramMechanism,
    UserScramCredential,
)
from tests.worlds.metadata import batches, records

TOPIC_ID = TopicId(bytes(range(16)))


@given(batches())
def test_a_batch_is_read_as_it_was_written(batch: MetadataBatch) -> None:
    assert decode_batch(encode_batch(batch, level=METADATA_VERSION_MAX)) == batch


@given(batches())
def test_the_bytes_of_a_batch_are_the_only_ones_that_msgpack_has_for_it(
    batch: MetadataBatch,
) -> None:
    """Programs of all releases write the same bytes for the same records."""
    payload = encode_batch(batch, level=METADATA_VERSION_MAX)
    assert payload == msgpack.packb(msgpack.unpackb(payload, raw=False), use_bin_type=True)


def test_a_quota_is_written_as_a_float_however_it_was_given() -> None:
    whole, part = (
        ClientQuota(entity=(("user", None),), key="producer_byte_rate", value=value)
        for value in (1024, 1024.0)
    )
    assert encode_record(whole, level=1) == encode_record(part, level=1)


@given(batches(), st.integers(1, 5))
def test_a_batch_is_decoded_in_steps(batch: MetadataBatch, per_step: int) -> None:
    payload = encode_batch(batch, level=METADATA_VERSION_MAX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec, "_RECORDS_PER_STEP", per_step)
        assert decode_batch(payload) == batch
        turns = sum(1 for _ in codec.batch_steps(payload))
    assert turns == max(0, -(-len(batch.records) // per_step) - 1)


@given(records())
def test_a_record_is_read_as_it_was_written(record: MetadataRecord) -> None:
    assert decode_record(encode_record(record, level=METADATA_VERSION_MAX)) == record


@given(batches(), st.data())
def test_damaged_bytes_are_one_error_or_another_batch(
    batch: MetadataBatch, data: st.DataObject
) -> None:
    payload = bytearray(encode_batch(batch, level=METADATA_VERSION_MAX))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    try:
        decoded = decode_batch(bytes(payload[:cut]))
    except MetadataDecodeError:
        return
    assert decode_batch(encode_batch(decoded, level=METADATA_VERSION_MAX)) == decoded


@given(st.binary(max_size=200))
def test_strange_bytes_are_one_error(payload: bytes) -> None:
    try:
        decode_batch(payload)
    except MetadataDecodeError:
        return


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb({"a": 1}),
        msgpack.packb([2, 1, []]),
        msgpack.packb([True, 1, []]),
        msgpack.packb([1, "1", []]),
        msgpack.packb([1, 1, [[99, 0]]]),
        msgpack.packb([1, 1, [[5, 1, TOPIC_ID, "t"]]]),
        msgpack.packb([1, 1, [[5, 0, TOPIC_ID]]]),
        msgpack.packb([1, 1, [[5, 0, "no bytes", "t"]]]),
        msgpack.packb([1, 1, [[5, 0, TOPIC_ID, b"no text"]]]),
        msgpack.packb([1, 1, [[9, 0, 3, "t", "n", "v"]]]),
        msgpack.packb([1, 1, [[6, 0, TOPIC_ID, 0, [1, None], [1], 1]]]),
        msgpack.packb([1, 1, [[6, 0, TOPIC_ID, True, [1], [1], 1]]]),
        b"\xdd\xff\xff\xff\xff" + b"\x90" * 10,  # an array that says it has 2^32 items
        b"\x91" * 5000,  # depth
    ],
)
def test_what_is_no_batch_is_refused(payload: bytes) -> None:
    with pytest.raises(MetadataDecodeError):
        decode_batch(payload)


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param([1, 7, [[5, 0, TOPIC_ID, "t", "something new"]]], id="a field"),
        pytest.param([1, 7, [[5, 1, TOPIC_ID, "t"]]], id="a version of a record"),
        pytest.param([1, 7, [[99, 0]]], id="a record"),
        pytest.param([1, 7, [[2, 1, 1, b"", [], 1, [["a", "b", 1, "", 5]]]]], id="a nested field"),
        pytest.param([1, 7, [], "more"], id="a part of a batch"),
        pytest.param([2, 7, []], id="a format"),
    ],
)
def test_what_only_a_newer_program_knows_is_refused_and_not_called_damage(batch: list[Any]) -> None:
    """A reader that ignored it would silently have other metadata than the others."""
    with pytest.raises(NewerProgramNeeded, match="a newer program is needed"):
        decode_batch(msgpack.packb(batch))


def test_what_a_level_does_not_allow_is_not_written() -> None:
    registration = RegisterBroker(
        broker_id=BrokerId(1),
        incarnation_id=IncarnationId(bytes(16)),
        directory_ids=(),
        restart_class=RestartClass.POWER,
        endpoints=(),
    )
    old, new = (msgpack.unpackb(encode_record(registration, level=level)) for level in (1, 2))
    assert (old[1], new[1]) == (0, 1), "the record's version"
    assert len(new) == len(old) + 1, "the appended field"
    for not_allowed in (
        replace(registration, feature_minima=(("metadata.version", 1),)),
        MetadataIncarnation(incarnation_id=MetadataIncarnationId(bytes(16))),
        RegisterController(controller_id=ControllerId(1), incarnation_id=IncarnationId(bytes(16))),
    ):
        with pytest.raises(AssertionError):
            encode_record(not_allowed, level=1)
        assert decode_record(encode_record(not_allowed, level=2)) == not_allowed
    for not_allowed in (
        replace(registration, host_id="h1"),
        RegisterController(
            controller_id=ControllerId(1), incarnation_id=IncarnationId(bytes(16)), host_id="h1"
        ),
    ):
        with pytest.raises(AssertionError):
            encode_record(not_allowed, level=2)
        assert decode_record(encode_record(not_allowed, level=3)) == not_allowed


def test_fields_that_an_older_version_did_not_write_have_their_defaults() -> None:
    payload = msgpack.packb([1, 7, [[6, 0, TOPIC_ID, 0, [1, 2], [1], 1]]])
    (record,) = decode_batch(payload).records
    assert record == Partition(
        topic_id=TOPIC_ID,
        partition=PartitionIndex(0),
        replicas=(BrokerId(1), BrokerId(2)),
        isr=(BrokerId(1),),
        leader=BrokerId(1),
    )
    assert isinstance(record, Partition)
    assert record.elr == ()


def test_type_ids_never_change() -> None:
    assert {cls.__name__: cls.TYPE_ID for cls in RECORD_TYPES} == {
        "FeatureLevel": 1,
        "RegisterBroker": 2,
        "BrokerRegistrationChange": 3,
        "UnregisterBroker": 4,
        "Topic": 5,
        "Partition": 6,
        "PartitionChange": 7,
        "RemoveTopic": 8,
        "Config": 9,
        "ProducerIds": 10,
        "ClientQuota": 11,
        "AccessControlEntry": 12,
        "RemoveAccessControlEntry": 13,
        "UserScramCredential": 14,
        "RemoveUserScramCredential": 15,
        "NoOp": 16,
        "MetadataIncarnation": 17,
        "RegisterController": 18,
    }


@pytest.mark.parametrize("level", [1, METADATA_VERSION_MAX])
def test_the_bytes_of_a_record_never_change(level: int) -> None:
    change = PartitionChange(
        topic_id=TOPIC_ID, partition=PartitionIndex(3), leader=BrokerId(2), isr=(BrokerId(2),)
    )
    assert (
        encode_batch(MetadataBatch(controller_epoch=5, records=(NoOp(), change)), level=level).hex()
        == "930105929210009c0700c410000102030405060708090a0b0c0d0e0f03029102" + "c0" * 6
    )


def test_a_credential_does_not_show_its_keys() -> None:
    credential = UserScramCredential(
        user="alice",
        mechanism=ScramMechanism.SHA_256,
        salt=b"salt",
        stored_key=b"stored-secret",
        server_key=b"server-secret",
        iterations=4096,
    )
    assert "secret" not in repr(credential)
    assert "alice" in repr(credential)
