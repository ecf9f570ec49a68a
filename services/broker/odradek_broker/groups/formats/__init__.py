"""The bytes of groups: the records of `__consumer_offsets`, and what consumers exchange in the classic protocol."""
