"""Tests of the SDK without server processes."""
