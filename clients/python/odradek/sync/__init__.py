"""The SDK without `await`. An event loop on a separate thread runs the asynchronous SDK.

    with odradek.sync.Client("localhost:9090") as client:
        with client.producer() as producer:
            producer.send("greetings", b"hello")

Every method does what the method of the same name in `odradek` does, and waits for its result. Several threads may
share an object, but only one thread at a time may read from a consumer.
"""

from odradek.sync.client import Admin, Client
from odradek.sync.consumer import Consumer
from odradek.sync.producer import Delivery, Producer, Transaction

__all__ = ["Admin", "Client", "Consumer", "Delivery", "Producer", "Transaction"]
