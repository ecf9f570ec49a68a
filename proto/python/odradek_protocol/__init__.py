"""Wire formats of Odradek: everything on which two processes must agree. This package does no I/O."""
