"""A segment and its indexes, walks over its batches, the list of a log's segments, and the swap of
compacted segments.
"""
