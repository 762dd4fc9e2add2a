"""The expected bus bandwidth of a collective on a job's hardware, and its source.

`observed` reads the facts (`inside` a node, `outside` between nodes) into `hardware`. `links` has the rate of one link,
`bounds` the most that a ring, a switch or the network can reach with it, and `models` what is usual. `ladder` chooses
between the sources, `curve` has the share that small messages reach, and `judge` compares a figure with the
expectation. Bus bandwidth is counted as in nccl-tests, in GB/s of 1e9 bytes, one way.
"""
