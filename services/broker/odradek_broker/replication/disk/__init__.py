"""What waits for the disk, and what is done about it by the clock or when it is full."""
