"""Metadata records, and the image that replaying them gives."""
