"""The last release of each release line of widely used clients, each installed from its package
registry.

A program for each client connects, creates a topic, writes, reads in a group, commits, fetches the
committed offsets, lists the topics and deletes its own. `releases.py` names the releases and writes
the table of them in docs/clients.md.
"""
