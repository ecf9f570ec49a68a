"""Segments: files of batches with their indexes, walks over them, and the tail kept in memory."""
