"""The command line `odradek`. Modules import what a command needs when it runs, so that start-up stays short."""
