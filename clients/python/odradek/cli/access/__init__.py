"""Commands about who may do what, and about certificates."""
