"""torchrun on a node whose clock is off, as its rendezvous sees it: by the seconds in SKEW."""

from __future__ import annotations

import datetime as dt
import os

import torch.distributed.elastic.rendezvous.dynamic_rendezvous as rendezvous
from torch.distributed.run import main

_SKEW = dt.timedelta(seconds=float(os.environ["SKEW"]))


class _Clock(dt.datetime):
    @classmethod
    def now(cls, tz=None):
        return dt.datetime.now(tz) + _SKEW


rendezvous.datetime = _Clock
main()
