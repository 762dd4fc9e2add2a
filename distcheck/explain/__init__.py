"""Explains a job's logs: which fault happened first, where, and which rule names it.

`reading` streams files to `matching`, which finds lines by the wordings of known errors (the tables of `known`,
and the messages that the rules' docstrings quote). `lines` has what is around a line, `places` its rank, node and time,
`sighting` all that is kept of it. `judging` tells the first cause from its consequences. `answer` and `rendering` make
of it what the user reads, with `remedies` where a rule names the cause, and `steps` where none does.
"""
