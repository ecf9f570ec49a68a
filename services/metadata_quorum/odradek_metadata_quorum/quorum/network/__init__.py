"""Between voters: typed frames over mutual TLS, nothing sent before it is on disk."""
