"""REST v3: Confluent's resources below /v3/clusters, each with `kind` and `metadata`; errors as in v2.

shapes     the shapes of responses, for openapi.json
resources  URLs and resource names, and calls that are repeated for each of many resources
clusters, configs, topics, partitions, groups, access, records: the routes
"""
