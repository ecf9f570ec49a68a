"""The link to the controller: registration, heartbeats, metadata feed, image."""
