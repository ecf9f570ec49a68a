"""Consumer groups as a sans-IO state machine."""
