"""distcheck: will torch.distributed start on exactly these nodes with exactly these ranks, at full speed?"""

__version__ = "0.1.0"
