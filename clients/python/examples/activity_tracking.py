"""Website activity: every click is an event with the user as its key, so the clicks of each user stay in order.

Ten users browse at the same time. Then a report reads the topic from the beginning and counts the sessions of each
user. A session is a series of clicks with less than half an hour between them.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

from odradek import Client, serializers
from odradek.errors import TopicExists

TOPIC = "activity"
SESSION_GAP_MS = 30 * 60 * 1000
PAGES = ("/", "/search", "/flights", "/checkout")


async def browse(producer: Any, user: str, sessions: int, began_ms: int) -> int:
    """Send the clicks of one user's sessions, which begin an hour apart, and return the number of clicks."""
    draw = random.Random(user)
    clicks = 0
    for session in range(sessions):
        at_ms = began_ms + session * 60 * 60 * 1000
        for _ in range(draw.randint(3, 12)):
            at_ms += draw.randint(1, 60) * 1000
            event = {"user": user, "page": draw.choice(PAGES), "at_ms": at_ms}
            await producer.send(TOPIC, event, key=user, timestamp_ms=at_ms)
            clicks += 1
    return clicks


async def count_sessions(client: Client, clicks: int) -> Counter[str]:
    """Read all clicks. The clicks of a user arrive in order, because they have the same key."""
    sessions: Counter[str] = Counter()
    last_ms: dict[str, int] = {}
    async with client.consumer(
        TOPIC, auto_offset_reset="earliest", value_deserializer=serializers.from_json
    ) as consumer:
        async for record in consumer:
            user, at_ms = record.value["user"], record.value["at_ms"]
            if at_ms - last_ms.get(user, -SESSION_GAP_MS) >= SESSION_GAP_MS:
                sessions[user] += 1
            last_ms[user] = at_ms
            clicks -= 1
            if not clicks:
                break
    return sessions


async def main() -> None:
    async with Client() as client:  # The address comes from ODRADEK_BOOTSTRAP.
        try:
            await client.admin.create_topic(TOPIC, partitions=6, replication_factor=1)
        except TopicExists:
            await client.admin.delete_records({(TOPIC, index): -1 for index in range(6)})
        async with client.producer(
            key_serializer=serializers.text, value_serializer=serializers.json
        ) as producer:
            users = [browse(producer, f"user-{n}", 1 + n % 4, 1_700_000_000_000) for n in range(10)]
            clicks = sum(await asyncio.gather(*users))
        sessions = await count_sessions(client, clicks)
    print(f"{clicks} clicks, {sum(sessions.values())} sessions of {len(sessions)} users")


if __name__ == "__main__":
    asyncio.run(main())
