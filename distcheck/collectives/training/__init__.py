"""Training steps of a small model on every rank, with exact expectations.

Importing this package takes another second of CPU time: it imports what a rank's process leaves out of torch.
"""

import contextlib

# Before torch: this import silences torch's warnings at import.
import distcheck.collectives.software  # noqa: F401
from distcheck.collectives.silence import without_warnings

# isort: split
with without_warnings(), contextlib.suppress(Exception):  # what is missing shows where it is used
    # Sharded and tensor-parallel layers and generators of random numbers need it, and so does torch._dynamo.
    import torch._meta_registrations

    # isort: split
    # The constructor of DistributedDataParallel imports it since torch 2.3.
    import torch._dynamo  # noqa: F401
