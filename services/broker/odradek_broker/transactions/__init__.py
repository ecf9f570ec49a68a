"""Transactions: the decisions of a transaction coordinator for one partition of `__transaction_state`, without I/O.

Public: `TransactionShard` (transaction_shard.py) with its `table` (transaction_table.py) and `reserve` (identity.py),
`TransactionSettings` (settings.py), the requests, responses and orders (messages.py), and the record (transaction.py)
with its codec (transaction_codec.py).

Read transaction.py first: it has the states of one transactional id and their moves. Then transaction_shard.py: it
has the handler of each request.
"""
