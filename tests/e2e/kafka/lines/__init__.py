"""The last release of each line of the clients that people have, each installed from its registry.

A program for each client connects, creates a topic, writes, reads in a group, commits, asks for the
offsets again, lists the topics and deletes its own. `releases.py` names the releases and writes the
table of them in docs/clients.md.
"""
