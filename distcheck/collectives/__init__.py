"""The only package that imports torch: process groups, timed sweeps, exact checks; one process per rank."""
