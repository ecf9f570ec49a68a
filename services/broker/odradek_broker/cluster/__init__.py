"""The broker's connections to the controllers: registration, heartbeats, lease, metadata feed, and calls to the
active controller.
"""
