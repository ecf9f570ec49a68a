"""Generic host of replicated state machines: load, handle, write, replay, answer, timers."""
