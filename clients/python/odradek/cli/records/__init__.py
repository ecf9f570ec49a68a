"""Commands about records: produce, consume, bench."""
