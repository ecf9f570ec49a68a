"""The command line `odradek`. Modules import the code of a command when it runs, so that start-up is fast."""
