"""A segment and its indexes, walks over its batches, the segments of a log, and the swap of compacted ones."""
