"""What a replica decides: events in, effects out. Sans-IO."""
