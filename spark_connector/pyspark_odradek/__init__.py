"""Odradek as a Spark data source."""
