"""SDK: the consumer. Cores without input or output: fetch_planner, fetched_chunk."""

from odradek.consumer.consumer import Consumer
from odradek.consumer.consumer_record import ConsumerRecord
from odradek.consumer.options import ConsumerOptions

__all__ = ["Consumer", "ConsumerOptions", "ConsumerRecord"]
