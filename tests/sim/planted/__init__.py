"""Bugs put into the production code on purpose: a simulator that finds none of them proves nothing.

Each is one rule taken out, as somebody might forget it. `bugs.py` plants them one at a time for the
random seeds; `test_directed_schedules.py` has a schedule of its own for those that chance rarely
meets. The numbers are those of the programme's list of planted bugs.
"""
