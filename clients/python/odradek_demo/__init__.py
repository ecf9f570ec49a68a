"""A demo of a cluster: real flights are sent through a replicated log while a partition leader and the active
controller are killed.
"""
