"""The only package that imports torch: process groups, timed sweeps and exact checks, one process per rank."""
