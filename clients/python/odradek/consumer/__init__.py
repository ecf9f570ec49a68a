"""The consumer of the SDK. `fetch_planner` and `fetched_chunk` decide without input or output."""
