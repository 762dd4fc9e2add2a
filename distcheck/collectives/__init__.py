"""The only package that imports torch; one process per rank.

It has process groups, timed sweeps and exact checks.
"""
