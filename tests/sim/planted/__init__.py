"""Bugs that tests put into the production code on purpose, to prove that the simulator finds such bugs.

A planted bug is a patch that removes one rule, as a programmer might forget it. `bugs.py` lists the bugs of the
simulator; each bug is planted alone. Seeds with random faults find most of the bugs; for those that random faults
rarely find, `schedules.py` arranges the necessary events. Each bug has a fixed number, by which tests and
docs/mechanisms.md name it.
"""
