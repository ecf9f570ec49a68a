"""Tests that run unchanged every command that the documentation tells a user to type, with the
files of deploy/ that it uses.
"""
