"""REST v3: Confluent's resources below /v3/clusters, each with `kind` and `metadata`; errors as in v2.

shapes            answers, for openapi.json
resources         URLs and resource names
concurrently      one question for each of many things
configs           what configs of anything have in common; topic_configs, broker_configs
clusters, brokers, topics, partitions, groups, lags, access, records: the routes
"""
