"""What the bus bandwidth of a collective should be on a job's hardware, and where that comes from.

`observed` reads the facts (`inside` a node, `outside` between nodes) into `hardware`; `links` knows what one link
carries, `bounds` what a ring, a switch or the network makes of it, and `models` what of that is usual. `ladder` chooses
between the sources, `curve` says what small messages reach, `judge` holds a figure against it. `references` are the
published figures behind all of it. Bus bandwidth is counted as nccl-tests counts it, in GB/s of 1e9 bytes, one way.
"""
