"""Encoding of the records of `__transaction_state`."""
