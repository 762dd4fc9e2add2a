"""What --help shows of the parameters of a command: in groups, with their values and defaults as they are typed."""

from __future__ import annotations

from typing import Any

from distcheck.cli.options import PANELS


def by_group(params: list[Any]) -> dict[str, list[tuple[str, str]]]:
    """Return what to print of each parameter, by the heading to print it under."""
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *PANELS, "Options")}
    for param in params:
        panel = getattr(param, "rich_help_panel", None)
        other = "Arguments" if param.param_type_name == "argument" else "Options"
        found[panel if panel in found else other].append(_record(param))
    return {name: records for name, records in found.items() if records}


def _record(param: Any) -> tuple[str, str]:
    """Return a parameter's names with its value, and its help with its default; typer would add types and ranges."""
    if param.param_type_name == "argument":
        return param.metavar, param.help
    names = " / ".join([", ".join(sorted(param.opts, key=len)), *param.secondary_opts])
    default = getattr(param.default, "value", param.default)  # older versions of typer make it one of the choices
    shown = f"{default:g}" if isinstance(default, float) else default
    is_shown = isinstance(default, float | str) and default != ""
    return names if param.is_flag else f"{names} {param.metavar}", param.help + f" [default: {shown}]" * is_shown
