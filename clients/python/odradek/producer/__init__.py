"""SDK: the producer. Cores without input or output: partition_queue, accumulator, partitioner."""

from odradek.producer.delivery import DeliveryFuture, RecordMetadata
from odradek.producer.options import ProducerOptions
from odradek.producer.producer import Producer

__all__ = ["DeliveryFuture", "Producer", "ProducerOptions", "RecordMetadata"]
