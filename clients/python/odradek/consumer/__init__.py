"""The consumer of the SDK. Its modules `fetch_planner` and `fetched_chunk` are sans-IO."""
