"""The consumer of the SDK. Its modules `fetch_planner` and `fetched_chunk` make decisions without I/O."""
