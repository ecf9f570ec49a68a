"""The link of a client to its cluster: connections, metadata, offset look-ups, retries."""
