"""Encodings: the records of `__consumer_offsets`, and the subscriptions and assignments of the classic protocol."""
