"""`odradek demo`: real flights through a replicated log while its leader and its controller are killed."""
