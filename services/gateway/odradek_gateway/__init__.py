"""The REST gateway: Confluent REST v2 and v3 shapes, in front of the SDK."""
