"""A demo of a cluster: it sends real flights through a replicated log while a leader and the controller
are killed.
"""
