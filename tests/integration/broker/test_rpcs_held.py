"""No RPC blocks a broker's event loop for long without a pause, even with the largest number of items.

The tests send every RPC for clients with as many items as brokers accept, one request for each
repeated field. The broker process measures the CPU time of each callback of its event loop, as in
`test_loop_held`. For RPCs that controllers answer, only the broker's part is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grpc.aio
import pytest

from odradek_runtime.budget.client_budget import ITEMS_MAX
from tests.integration.broker.broker_cluster import BrokerCluster
from tests.integration.broker.test_loop_held import _worst
from tests.integration.broker.watched_broker import HELD_FILE
from tests.unit.security.largest_rpcs import LargeRpc, largest_rpcs

HELD_S_MAX: Final = 0.020


@pytest.mark.parametrize("count", [ITEMS_MAX // 4, pytest.param(ITEMS_MAX, marks=pytest.mark.long)])
@pytest.mark.timeout(600)
async def test_no_rpc_keeps_the_loop_for_long(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = tmp_path / "held"
    held.touch()
    monkeypatch.setenv(HELD_FILE, str(held))
    module = "tests.integration.broker.watched_broker"
    async with BrokerCluster(tmp_path, module=module) as cluster:
        await cluster.disable_topic_creation()
        await cluster.create_topic("orders", partitions=100)
        channel = cluster.channel(1)
        too_long: list[str] = []
        for rpc in largest_rpcs(count):
            before = held.stat().st_size
            outcome = await _asked(channel, rpc)
            worst, collecting, what = _worst(held.read_text()[before:])
            print(
                f"{worst * 1000:7.1f} ms {collecting * 1000:6.1f} ms gc {outcome:>20}"
                f"  {rpc.name}  {what[:110]}",
                flush=True,
            )
            if worst > HELD_S_MAX:
                too_long.append(f"{rpc.name}: {worst} s in {what}")
        assert not too_long, "\n".join(too_long)


async def _asked(channel: grpc.aio.Channel, rpc: LargeRpc) -> str:
    """Send the request, and wait for a response or the end of the call."""
    call: Any = channel.stream_stream(
        rpc.path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=rpc.response,
    )(timeout=60)
    try:
        await call.write(rpc.request)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            if rpc.path.endswith("/WatchMetadata"):
                break
        return "OK"
    except grpc.aio.AioRpcError as error:
        return error.code().name
    finally:
        call.cancel()
