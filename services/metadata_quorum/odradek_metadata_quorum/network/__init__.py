"""Messages between voters: their encoding, their connections (mutual TLS), and the queue in which a message waits until
the state that it reports is on disk.
"""
