"""SDK: cli."""
