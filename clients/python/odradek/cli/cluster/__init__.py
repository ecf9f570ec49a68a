"""Commands about the cluster, its topics and its groups."""
