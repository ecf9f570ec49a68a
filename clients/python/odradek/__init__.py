"""The Python SDK of Odradek."""
