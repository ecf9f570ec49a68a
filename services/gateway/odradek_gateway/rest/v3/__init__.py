"""Confluent's REST API v3: resources below /v3/clusters, each with `kind` and `metadata`. Errors have the form of v2.

shapes     the types of responses, for openapi.json
resources  URLs and resource names, and calls that are repeated for each of many resources
clusters, configs, topics, partitions, groups, access, records, transactions: the routes
"""
