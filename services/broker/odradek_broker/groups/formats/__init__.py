"""The encodings of the records of `__consumer_offsets`, and of the classic protocol's subscriptions and assignments."""
