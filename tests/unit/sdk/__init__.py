"""The SDK, without processes."""
