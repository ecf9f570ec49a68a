"""The command line `odradek`. Its modules import what they need when a command runs: start-up stays short."""
