"""Runs scenarios of a replica that are written as text: an unindented line is an event, and the
indented lines below it are the expected effects.

    at 10 ack-received session=2/102/1 leader_epoch=5 ack_to=3
      high-watermark-moved high_watermark=3

An event is written as its class in kebab case with its fields. Fields that a line omits take their
value from DEFAULTS. Brokers are registered under epoch 100 + id unless a line says otherwise.
`python -m tests.unit.partition.story FILE` rewrites the expected effects in FILE; review the diff
before you commit it.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from odradek_broker.log.producer_state import ProducerStates
from odradek_broker.partition import events
from odradek_broker.partition.effects import Append, Effect
from odradek_broker.partition.events import (
    BrokerView,
    FollowerSession,
    ProducerBatch,
    ProduceRequested,
)
from odradek_broker.partition.log_positions import LogAtOpen
from odradek_broker.partition.replica import Replica
from odradek_broker.partition.settings import ReplicaSettings
from odradek_protocol.identity import PartitionIndex, TopicId, TopicIdPartition
from odradek_protocol.kafka.error_codes import ErrorCode

PARTITION = TopicIdPartition(TopicId(b"t" * 16), PartitionIndex(0))
DEFAULTS: dict[str, Any] = {
    "replicas": (1, 2, 3),
    "isr": (1, 2, 3),
    "elr": (),
    "min_insync_replicas": 2,
    "is_recovering": False,
    "is_fsync": False,
    "is_synced": False,
    "record_count": 1,
    "acks": -1,
    "deadline_ms": 10_000,
    "is_intact": True,
    "log_start": 0,
    "attach_seq": 1,
    "error_code": ErrorCode.NONE,
    "session_id": 1,
    "reason": "EIO",
    "is_fenced": False,
    "in_shutdown": False,
}


def view(broker_id: int, broker_epoch: int | None = None, **flags: bool) -> BrokerView:
    return BrokerView(
        broker_id=broker_id,
        broker_epoch=100 + broker_id if broker_epoch is None else broker_epoch,
        is_fenced=flags.get("is_fenced", False),
        in_shutdown=flags.get("in_shutdown", False),
    )


def session(text: str) -> FollowerSession:
    """Parse a session such as `2/102/1`: broker, broker epoch, session id.

    A fourth part means the catch-up lane.
    """
    broker_id, broker_epoch, session_id, *lane = text.split("/")
    return FollowerSession(
        broker_id=int(broker_id),
        broker_epoch=int(broker_epoch),
        session_id=int(session_id),
        is_catch_up=bool(lane),
    )


def epochs(text: str) -> tuple[tuple[int, int], ...]:
    """Parse leader epochs such as `5@0,6@3`: epoch 5 begins at offset 0, epoch 6 at offset 3."""
    return tuple((int(e), int(o)) for e, o in (p.split("@") for p in text.split(",") if p))


def opened(words: list[str]) -> Replica:
    """Parse a replica such as `replica 1 log=0..5 epochs=3@0 hw=2`.

    Its log is durable up to its end unless the line has `durable`.
    """
    fields = dict(word.split("=") for word in words[1:])
    start, end = (int(part) for part in fields.get("log", "0..0").split(".."))
    return Replica(
        partition=PARTITION,
        broker_id=int(words[0]),
        settings=ReplicaSettings(),
        log=LogAtOpen(
            log_start=start,
            log_end=end,
            durable_end=int(fields.get("durable", end)),
            high_watermark=int(fields.get("hw", start)),
            epochs=epochs(fields.get("epochs", "")),
        ),
        producers=ProducerStates(),
        attach_seqs=itertools.count(1),
    )


def event_of(name: str, words: list[str]) -> events.Event:
    cls = getattr(events, "".join(part.capitalize() for part in name.split("-")))
    fields = {key: _value(key, text) for key, text in (word.split("=") for word in words)}
    if cls is events.BrokerChanged:
        fields = {"broker": view(**fields)}
    if cls is events.PartitionChanged:
        fields.setdefault(
            "brokers", tuple(view(b) for b in fields.get("replicas", DEFAULTS["replicas"]))
        )
    required = len(cls.__struct_fields__) - len(cls.__struct_defaults__)
    for name in cls.__struct_fields__[:required]:
        if name not in fields:
            fields[name] = DEFAULTS[name]
    return cls(**fields)


def effect_text(effect: Effect) -> str:
    name = re.sub(r"(?<!^)(?=[A-Z])", "-", type(effect).__name__).lower()
    shown = [
        f"{name}={_text(getattr(effect, name))}"
        for name in effect.__struct_fields__
        if name != "further_ids" or effect.further_ids  # a story's produces are alone
    ]
    return " ".join([name, *shown])


def replay(
    lines: list[str], look: Callable[[Replica, int], None] = lambda _replica, _now_ms: None
) -> list[str]:
    """Run the events, which are the unindented lines, and return them with the effects of each.

    `look` is called after each event.
    """
    replica: Replica | None = None
    asked: ProduceRequested | None = None
    out: list[str] = []
    for line in lines:
        if line.startswith("  "):
            continue
        out.append(line)
        words = line.split()
        if words[0] == "replica":
            replica = opened(words[1:])
            continue
        assert replica is not None, "a story begins with its replica"
        if words[0] == "show":
            out += [f"  {name}={_text(getattr(replica, name))}" for name in words[1:]]
            continue
        event = event_of(words[2], words[3:])
        if isinstance(event, ProduceRequested):
            asked = event
        if isinstance(event, events.AttachReceived) and "attach_seq=" not in line:
            event = msgspec.structs.replace(event, attach_seq=len(out))
        effects = list(replica.step(event, int(words[1])))
        if effects and isinstance(effects[-1], Append) and effects[-1].request_id is not None:
            assert asked is not None, effects
            out.append("  " + effect_text(effects[-1]))
            end = effects[-1].base_offset + asked.record_count
            effects = list(replica.step(events.Appended(end_offset=end), int(words[1])))
        elif effects and isinstance(effects[-1], Append):
            out.append("  " + effect_text(effects[-1]))
            appended = events.Appended(end_offset=event.end_offset)
            effects = list(replica.step(appended, int(words[1])))
        out += ["  " + effect_text(effect) for effect in effects]
        look(replica, int(words[1]))
    return out


def scenarios(path: Path) -> list[tuple[str, list[str]]]:
    blocks = path.read_text().split("scenario ")[1:]
    return [
        (lines[0], [line for line in lines[1:] if line and not line.startswith("#")])
        for lines in (block.splitlines() for block in blocks)
    ]


def _value(key: str, text: str) -> Any:
    match key:
        case "session":
            return session(text)
        case "epochs":
            return epochs(text)
        case "replicas" | "isr" | "elr":
            return tuple(int(part) for part in text.split(",") if part)
        case "error_code":
            return ErrorCode[text]
        case "producer":
            producer_id, epoch, first, last = (int(part) for part in text.split("/"))
            return ProducerBatch(
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=first,
                last_sequence=last,
            )
        case "reason":
            return text
    return text == "True" if text in ("True", "False") else int(text)


def _text(value: Any) -> str:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, FollowerSession):
        lane = "/catch-up" if value.is_catch_up else ""
        return f"{value.broker_id}/{value.broker_epoch}/{value.session_id}{lane}"
    if isinstance(value, tuple):
        return ",".join("/".join(str(part) for part in item) for item in value)
    return str(value)


def main(path: Path) -> None:
    text = path.read_text().split("scenario ")[0]
    for name, lines in scenarios(path):
        text += "\n".join([f"scenario {name}", *replay(lines), "", ""])
    path.write_text(text.rstrip("\n") + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
