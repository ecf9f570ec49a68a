"""The SDK without `await`: the same client, driven on a thread of its own.

    with odradek.sync.Client("localhost:9090") as client:
        with client.producer() as producer:
            producer.send("greetings", b"hello")

Every method does what its namesake in `odradek` does, and waits for it. Safe to share between
threads, but for a consumer, which has one reader.
"""

from odradek.sync.client import Admin, Client, Consumer
from odradek.sync.producer import Delivery, Producer

__all__ = ["Admin", "Client", "Consumer", "Delivery", "Producer"]
