"""The controller as a pure state machine: decides, never acts."""
