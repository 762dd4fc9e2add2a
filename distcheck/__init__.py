"""distcheck: will torch.distributed start on exactly these nodes with exactly these ranks, at full speed?"""

TYPE_CHECKING = False  # typing is imported by __main__, which takes an interrupt meanwhile
if TYPE_CHECKING:
    from distcheck.cli.preflight import PreflightError, PreflightResult, preflight

__all__ = ["PreflightError", "PreflightResult", "__version__", "preflight"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load the Python interface when it is used: the ranks and probes import this package too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distcheck.cli import preflight as interface

    return getattr(interface, name)
