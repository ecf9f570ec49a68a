"""Bugs that tests put into the production code on purpose, to prove that the simulator finds such
bugs.

A planted bug is a patch that removes one rule, as a programmer might forget it. `bugs.py` lists the
bugs of the simulator; each is planted alone. Seeds with random faults find most of them; for those
that random faults rarely trigger, `schedules.py` arranges the events that do. Each bug has a fixed
number, by which tests and docs/mechanisms.md name it.
"""
