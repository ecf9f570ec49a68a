"""Tests of the transaction coordinator's decisions."""
