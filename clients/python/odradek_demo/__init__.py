"""The demo of a cluster: real flights go through a replicated log while its leader and controller are killed."""
