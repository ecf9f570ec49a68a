"""Wire formats of Odradek: everything that two processes must agree on. Sans-IO."""
