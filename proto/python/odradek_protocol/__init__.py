"""Wire formats of Odradek: everything that two processes must agree on. It does no I/O."""
