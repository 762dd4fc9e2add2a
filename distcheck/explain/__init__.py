"""Explains a job's logs: which fault happened first, where, and which rule names it.

`reading` streams files to `matching`, which finds lines by the wordings of known errors (the tables of `known`,
and the messages that the rules' docstrings quote). `places` reads a line's rank, node and time. `judging` tells the
first cause from its consequences. `answer` and `rendering` make of it what the user reads.
"""
