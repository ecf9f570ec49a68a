"""The link to the controllers: registration, heartbeats, lease, metadata feed, and calls to the active one."""
