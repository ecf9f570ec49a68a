"""Transactions: the logic of a transaction coordinator for one partition of `__transaction_state`, without I/O.

The public names are `TransactionShard` (transaction_shard.py), its attributes `table` (transaction_table.py) and
`reserve` (identity.py), `TransactionSettings` (settings.py), the messages (messages.py: requests, responses, and orders
to write markers), and the record (transaction.py) with its codec (transaction_codec.py).

Read transaction.py first, which describes the states of one transactional id and their changes. Then read
transaction_shard.py, which has the handler of each request.
"""
