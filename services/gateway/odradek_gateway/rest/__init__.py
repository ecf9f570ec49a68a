"""REST routes: v2 and v3, and what both share."""
