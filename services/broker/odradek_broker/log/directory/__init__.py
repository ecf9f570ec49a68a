"""Files of a data directory that belong to no segment, and directories that are not live; used by `LogDirectory`."""
