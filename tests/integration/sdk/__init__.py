"""The SDK against clusters of real processes."""
