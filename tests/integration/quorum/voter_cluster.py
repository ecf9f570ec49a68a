"""Three voter processes over mutual TLS on loopback, controlled by their standard input and
output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from odradek.embedded import free_ports
from odradek_metadata_quorum.storage.data_directory import format_storage
from tests.integration.quorum.certificates import CertificateAuthority

_ROOT = Path(__file__).resolve().parents[3]


class VoterCluster:
    """Starts, kills and restarts voters, and reads their output."""

    def __init__(self, directory: Path, *, voters: int = 3, tls: bool = True, **settings: Any):
        self._directory = directory
        self._settings = settings
        ports = free_ports(voters)
        self._voters = {str(node_id + 1): ["127.0.0.1", port] for node_id, port in enumerate(ports)}
        self.node_ids = [int(node_id) for node_id in self._voters]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._outputs: dict[int, Path] = {}
        authority = CertificateAuthority(directory / "tls") if tls else None
        for node_id in self.node_ids:
            format_storage(
                directory / f"data-{node_id}",
                cluster_id="bench",
                node_id=node_id,
                voters=self.node_ids,
            )
            document: dict[str, Any] = {
                "node_id": node_id,
                "voters": self._voters,
                "data_dir": str(directory / f"data-{node_id}"),
                **settings,
            }
            if authority is not None:
                issued = authority.issue_controller(node_id)
                document["tls"] = {
                    "certificate_path": str(issued.certificate_path),
                    "key_path": str(issued.key_path),
                    "ca_path": str(issued.ca_path),
                }
            self._path(node_id).write_text(json.dumps(document))
            self._outputs[node_id] = directory / f"voter-{node_id}.out"
            self._outputs[node_id].touch()

    def __enter__(self) -> Self:
        for node_id in self.node_ids:
            self.start(node_id)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node_id in list(self._processes):
            self.kill(node_id)

    def _path(self, node_id: int) -> Path:
        return self._directory / f"voter-{node_id}.json"

    def start(self, node_id: int) -> None:
        """Start a voter with the files in its directory; its output is appended to the same
        file.
        """
        with (
            self._outputs[node_id].open("ab") as out,
            (self._directory / f"voter-{node_id}.err").open("ab") as err,
        ):
            self._processes[node_id] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "tests.integration.quorum.voter_process",
                    str(self._path(node_id)),
                ],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                cwd=_ROOT,
            )

    def kill(self, node_id: int) -> None:
        """Kill a voter with SIGKILL."""
        process = self._processes.pop(node_id)
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def terminate(self, node_id: int) -> int:
        """Send SIGTERM and return the exit status."""
        process = self._processes.pop(node_id)
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(60)
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def running(self) -> list[int]:
        """Return the nodes whose process runs."""
        return [node_id for node_id, process in self._processes.items() if process.poll() is None]

    def say(self, node_id: int, **command: object) -> None:
        """Send one command to a voter."""
        stdin = self._processes[node_id].stdin
        assert stdin is not None
        os.write(stdin.fileno(), (json.dumps(command) + "\n").encode())

    def events(self, node_id: int, kind: str) -> list[dict[str, Any]]:
        """Return all events of a kind that a node has reported since its first start."""
        lines = self._outputs[node_id].read_bytes().split(b"\n")[:-1]
        return [event for line in lines if (event := json.loads(line))["event"] == kind]

    def leader(self) -> int:
        """Wait for an active leader; return the running node that became active last."""

        def latest() -> int | None:
            found = [
                (events[-1]["epoch"], node_id)
                for node_id in self.running()
                if (events := self.events(node_id, "active"))
                and not any(
                    gone["epoch"] == events[-1]["epoch"]
                    for gone in self.events(node_id, "resigned")
                )
            ]
            return max(found)[1] if found else None

        return self.wait_for(latest, "a leader")

    def wait_for(self, probe: Callable[[], Any], what: str, bound_s: float = 60.0) -> Any:
        """Poll until the probe returns something true, and return that."""
        end_s = time.monotonic() + bound_s
        while True:
            found = probe()
            if found:
                return found
            assert time.monotonic() < end_s, f"waited {bound_s} s for {what}\n{self.errors()}"
            time.sleep(0.01)

    def errors(self) -> str:
        """Return what the voters wrote to standard error."""
        return "\n".join(
            f"--- {node_id}\n{(self._directory / f'voter-{node_id}.err').read_text()[-2000:]}"
            for node_id in self.node_ids
        )

    def acknowledged(self) -> dict[int, str]:
        """Return the text of every acknowledged entry, by offset."""
        return {
            event["offset"]: event["text"]
            for node_id in self.node_ids
            for event in self.events(node_id, "ack")
        }

    def dump(self, node_id: int) -> dict[int, str]:
        """Return the state of a node's state machine."""
        path = self._directory / f"dump-{node_id}-{time.monotonic_ns()}"
        self.say(node_id, do="dump", path=str(path))
        self.wait_for(path.exists, f"the dump of {node_id}")
        return dict(json.loads(path.read_text()))
