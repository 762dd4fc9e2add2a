"""The only package that imports torch; one process per rank.

It has process groups, timed sweeps and exact checks. All ranks agree on the number of operations, synchronise, and run
them back to back: a burst. With a mesh a rank forms only its own groups, in one order of dimensions, which no order of
ranks can deadlock; the ranks of a group meet at the store first, so that NCCL and Gloo never wait for one that is gone.
"""
