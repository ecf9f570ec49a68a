"""Runs one voter as a process, for tests and benchmarks: `python -m ... SETTINGS.json`.

It prints one JSON object in each line: `ready`, `active`, `resigned`, `ack` (a proposal's number
and offset), `load` (a measurement). Commands are also JSON lines: `trickle` proposes one entry
after the other while this node is active; `load` proposes from many tasks and measures; `dump`
writes the state to a file. SIGTERM stops the process in a controlled way.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import uvloop

from odradek_metadata_quorum.errors import NotLeader, OutcomeUnknown
from odradek_metadata_quorum.raft.quorum import Quorum
from odradek_metadata_quorum.settings import QuorumSettings, QuorumTimers, QuorumTls


def say(**event: object) -> None:
    """Print an event as one line in one write, so that kill -9 loses no part of it."""
    os.write(1, (json.dumps(event) + "\n").encode())


class History:
    """A state machine that keeps all payloads."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, bytes]] = []

    def apply(self, offset: int, epoch: int, payload: bytes) -> None:
        self.entries.append((offset, payload))

    def snapshot(self) -> Callable[[], bytes]:
        entries = list(self.entries)
        return lambda: msgpack.packb(entries)

    def restore(self, offset: int, epoch: int, data: bytes) -> Callable[[], None]:
        entries = [(at, payload) for at, payload in msgpack.unpackb(data)]

        def replace() -> None:
            self.entries = entries

        return replace


class Voter:
    """The voter, its commands and its measurements."""

    def __init__(self, document: dict[str, Any]) -> None:
        tls = document.get("tls")
        self._name = f"{document['node_id']}-{os.getpid()}"
        self._history = History()
        self._quorum = Quorum(
            QuorumSettings(
                node_id=document["node_id"],
                cluster_id="bench",
                voters={int(k): (v[0], v[1]) for k, v in document["voters"].items()},
                data_dir=Path(document["data_dir"]),
                listen_port=document["voters"][str(document["node_id"])][1],
                tls=None if tls is None else QuorumTls(**{k: Path(v) for k, v in tls.items()}),
                snapshot_interval_entries=document.get("snapshot_interval_entries", 20_000),
                snapshot_entries_min=document.get("snapshot_entries_min", 20_000),
                timers=QuorumTimers(**document.get("timers", {})),
            ),
            self._history,
        )
        self._number = 0
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        self._quorum.add_leadership_listener(
            on_active=lambda epoch: say(event="active", epoch=epoch, time_s=time.time()),
            on_resigned=lambda epoch: say(event="resigned", epoch=epoch),
        )
        await self._quorum.start()
        say(event="ready")
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with asyncio.TaskGroup() as tasks:
            commands = tasks.create_task(self._obey(reader, tasks))
            await self._stop.wait()
            commands.cancel()
        await self._quorum.stop()

    async def _obey(self, reader: asyncio.StreamReader, tasks: asyncio.TaskGroup) -> None:
        while line := await reader.readline():
            command = json.loads(line)
            if command["do"] == "trickle":
                tasks.create_task(self._trickle())
            elif command["do"] == "load":
                tasks.create_task(self._load(command["tasks"], command["proposals"]))
            elif command["do"] == "dump":
                entries = [[at, payload.decode()] for at, payload in self._history.entries]
                path = Path(command["path"])
                path.with_suffix(".tmp").write_text(json.dumps(entries))
                path.with_suffix(".tmp").rename(path)
                say(event="dumped", applied=self._quorum.applied)

    async def _trickle(self) -> None:
        while not self._stop.is_set():
            epoch = self._quorum.active_epoch
            if epoch is None:
                await asyncio.sleep(0.002)
                continue
            self._number += 1
            text = f"{self._name}-{self._number}"
            try:
                offset = await self._quorum.propose(text.encode(), epoch=epoch, timeout_s=5.0)
            except (NotLeader, OutcomeUnknown):
                continue
            say(event="ack", text=text, offset=offset, time_s=time.time())

    async def _load(self, tasks: int, proposals: int) -> None:
        quorum = self._quorum
        epoch = quorum.active_epoch
        assert epoch is not None
        latencies: list[float] = []
        payload = b"x" * 100

        async def client(count: int) -> None:
            for _ in range(count):
                start = time.perf_counter()
                await quorum.propose(payload, epoch=epoch, timeout_s=10.0)
                latencies.append(time.perf_counter() - start)

        before = quorum.status().sync
        cpu_s, start = time.process_time(), time.perf_counter()
        await asyncio.gather(*(client(proposals // tasks) for _ in range(tasks)))
        elapsed_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu_s
        after = quorum.status().sync
        latencies.sort()
        say(
            event="load",
            tasks=tasks,
            proposals=len(latencies),
            per_s=round(len(latencies) / elapsed_s),
            p50_ms=round(latencies[len(latencies) // 2] * 1e3, 3),
            p99_ms=round(latencies[int(len(latencies) * 0.99)] * 1e3, 3),
            leader_cpu_share=round(cpu_s / elapsed_s, 2),
            syncs=after.count - before.count,
            sync_mean_ms=round(
                (after.total_ns - before.total_ns) / max(1, after.count - before.count) / 1e6, 3
            ),
        )


def main() -> None:
    document = json.loads(Path(sys.argv[1]).read_text())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(Voter(document).run())


if __name__ == "__main__":
    main()
