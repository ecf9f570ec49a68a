"""Streams of records return results while they run, and are slowed down instead of being buffered.

A gateway that stops completes running requests.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time

import httpx

from tests.integration.gateway.conftest import Gateway

V2 = {"content-type": "application/vnd.kafka.v2+json"}
PATIENCE_S = 30.0
OFFERED_BYTES = 64 << 20
HELD_BYTES_MAX = 24 << 20  # both socket buffers, and 1,000 records in flight


class RecordStream:
    """One chunked request that is written and read at the same time."""

    def __init__(self, gateway: Gateway, topic: str) -> None:
        url = gateway.http.base_url
        self.socket = socket.create_connection((url.host, url.port), timeout=PATIENCE_S)
        head = f"POST {gateway.v3}/topics/{topic}/records HTTP/1.1\r\nhost: {url.host}\r\n"
        head += "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        self.socket.sendall(head.encode())
        self._response: http.client.HTTPResponse | None = None

    def send(self, *values: str) -> None:
        data = b"".join(record(value) for value in values)
        self.socket.sendall(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        self.socket.sendall(b"0\r\n\r\n")

    def answer(self) -> dict[str, object]:
        """Return the next result; the first call also reads the head of the response."""
        if self._response is None:
            self._response = http.client.HTTPResponse(self.socket)
            self._response.begin()
            assert self._response.status == 200
        told: dict[str, object] = json.loads(self._response.readline())
        return told

    def rest(self) -> list[dict[str, object]]:
        assert self._response is not None
        return [json.loads(line) for line in self._response.read().splitlines()]


def record(value: str) -> bytes:
    return json.dumps({"value": {"type": "STRING", "data": value}}).encode()


def test_an_answer_comes_before_the_next_record_is_sent(gateway: Gateway) -> None:
    topic = gateway.topic("dialogue", partitions=1)
    stream = RecordStream(gateway, topic)
    with contextlib.closing(stream.socket):
        for number in range(20):
            stream.send(str(number))
            assert stream.answer()["offset"] == number
        stream.end()
        assert stream.rest() == []


def test_a_stream_is_read_no_further_while_its_records_wait(gateway: Gateway) -> None:
    topic = gateway.topic("slowed", partitions=1)
    stream = RecordStream(gateway, topic)
    with contextlib.closing(stream.socket):
        stream.send("first")
        assert stream.answer()["offset"] == 0
        broker = gateway.cluster.brokers[1].pid
        os.kill(broker, signal.SIGSTOP)
        piece = record("x" * 1_000)
        chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
        sent, unsent = 0, b""
        stream.socket.settimeout(1.0)
        try:
            while sent * len(chunk) < OFFERED_BYTES:
                unsent = chunk
                while unsent:
                    unsent = unsent[stream.socket.send(unsent) :]
                sent += 1
        except TimeoutError:
            pass  # what is left of `unsent` goes out below
        finally:
            os.kill(broker, signal.SIGCONT)
        assert sent * len(chunk) < HELD_BYTES_MAX, f"{sent} records were taken, none acknowledged"
        assert sent > 1_000
        stream.socket.settimeout(PATIENCE_S)
        left = [unsent] if unsent else []

        def finish() -> None:
            for part in (*left, b"0\r\n\r\n"):
                stream.socket.sendall(part)

        sending = threading.Thread(target=finish, daemon=True)
        sending.start()
        answers = stream.rest()
        sending.join(PATIENCE_S)
    expected = sent + len(left)
    assert [a["error_code"] for a in answers] == [200] * expected
    assert [a["offset"] for a in answers] == list(range(1, expected + 1))


def test_a_gateway_that_stops_ends_its_requests_first(gateway: Gateway) -> None:
    topic = gateway.topic("stops", partitions=1)
    quiet = gateway.topic("quiet", partitions=1)
    config = {"name": "i", "auto.offset.reset": "latest"}
    assert gateway.http.post("/consumers/g", json=config, headers=V2).status_code == 200
    base = "/consumers/g/instances/i"
    body = {"partitions": [{"topic": quiet, "partition": 0}]}
    assert gateway.http.post(f"{base}/assignments", json=body, headers=V2).status_code == 204
    polled: list[tuple[int, object, float]] = []

    def poll() -> None:
        began_s = time.monotonic()
        with httpx.Client(base_url=gateway.http.base_url, timeout=60) as http_client:
            told = http_client.get(f"{base}/records?timeout=55000")
            polled.append((told.status_code, told.json(), time.monotonic() - began_s))

    polling = threading.Thread(target=poll, daemon=True)
    polling.start()
    stream = RecordStream(gateway, topic)
    with contextlib.closing(stream.socket):
        stream.send("a", "b")
        assert [stream.answer()["offset"] for _ in range(2)] == [0, 1]
        deadline_s = time.monotonic() + PATIENCE_S
        while "odradek_gateway_requests_at_work 3.0" not in gateway.http.get("/metrics").text:
            assert time.monotonic() < deadline_s, "the poll, the stream and the scrape are at work"
        process = gateway.cluster.gateways[1]
        process.signal(signal.SIGTERM)
        polling.join(PATIENCE_S)
        assert polled, "the long poll did not return"
        assert polled[0][:2] == (200, [])
        assert polled[0][2] < PATIENCE_S, "it waited for its own time-out"
        stream.send("c", "d")
        stream.end()
        assert [a["offset"] for a in stream.rest()] == [2, 3]
    assert process.wait(PATIENCE_S)
    status = process.exit_status()
    process.start()  # the other tests have it too
    process.wait_ready(PATIENCE_S)
    assert status == 0
