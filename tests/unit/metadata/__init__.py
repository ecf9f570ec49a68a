"""The records, the image they add up to, and the configs."""
