"""The routes of REST v2 and v3, and the code that both versions share."""
