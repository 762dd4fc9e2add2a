"""Reads a launcher's own options, before its program or anywhere, and those of the YAML file that --config names.

argparse (vllm, sglang) takes ``--a=b``, ``--a b`` and the beginning of a long option; click (fabric, axolotl) and
jsonargparse (litgpt) take no beginnings. The last one counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from distcheck.selection.launch_commands.stated import ReadFile, RefusedError, UnreadableError

_KEY = re.compile(r"(['\"]?)([\w.-]+)\1[ \t]*:(?:[ \t]+(.*))?")
_NO_KEY = re.compile(r"[\s#\]}].*|-([ \t].*)?|---.*|\.\.\.|", re.DOTALL)
"""What may stand beside a file's own keys: what belongs to one of them, and comments."""
_LONG_ENOUGH = 3
"""Letters from which an abbreviation is one."""
_OFF = frozenset({"", "~", "null", "false", "no", "off"})


def spelled(table: str) -> dict[str, str]:
    """Return the name of an option by its spellings: --name,-n; the first one is its name."""
    options = (spellings.split(",") for spellings in table.split())
    return {spelling: first.lstrip("-") for first, *more in options for spelling in (first, *more)}


def values(
    words: Sequence[str], options: Mapping[str, str], flags: frozenset[str] = frozenset(), *, abbreviated: bool = True
) -> dict[str, str]:
    """Return the values of these options by their names, as `spelled` has them; '' for flags, which take no value."""
    found: dict[str, str] = {}
    behind = ""
    for word in words:
        if behind:
            found[behind], behind = word, ""
            continue
        if word == "--":
            break
        option, equals, value = word.partition("=")
        name = _name(option, options, abbreviated=abbreviated)
        if not name and word[:1] == "-" and word[1:2] != "-":  # the value is in the same word: -n2
            name, equals, value = options.get(word[:2], ""), "=", word[2:].removeprefix("=")
        if name and (equals or name in flags):
            found[name] = "" if name in flags else value
        else:
            behind = name
    return found | ({behind: ""} if behind else {})


def _name(option: str, options: Mapping[str, str], *, abbreviated: bool) -> str:
    option = option.replace("_", "-") if option.startswith("--") else option
    if option in options or not abbreviated or not re.match("--.", option):
        return options.get(option, "")
    fits = {name for spelling, name in options.items() if spelling.startswith(option)}
    return fits.pop() if len(fits) == 1 else ""


def ending(words: Sequence[str], *suffixes: str) -> str:
    """Return the first word with one of these endings that is no option and no URL, '' without one."""
    return next((w for w in words if w.endswith(suffixes) and w[:1] != "-" and "://" not in w), "")


def before(
    words: Sequence[str], values: Mapping[str, str], flags: Collection[str] = (), pairs: Collection[str] = ()
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the options before a program, by name, and the program with all behind it; the last of several wins.

    Args:
        words: the words of a launcher.
        values: the name of each option with a value, by each of its spellings without dashes in front.
        flags: the spellings of those without a value; found as themselves.
        pairs: those with two values, which are skipped.

    Raises:
        UnreadableError: the program may begin at the word behind an option, or at a later one.
    """
    found: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] not in {"-", "--"}:
        spelling, equals, value = _spelling(words[at], (*values, *flags, *pairs))
        if spelling in pairs:
            at += 2 if "=" in "".join(words[at + 1 : at + 2]) else 3
        elif spelling in flags:
            found[spelling] = ""
            at += 1
        elif spelling in values:
            found[values[spelling]] = value if equals else "".join(words[at + 1 : at + 2])
            at += 1 if equals else 2
        else:
            option = words[at].partition("=")[0]
            raise UnreadableError(f"option {option} is unknown to distcheck", "--hosts and --nproc")
    return found, tuple(words[at + (words[at : at + 1] == ("--",)) :])


def _spelling(word: str, known: Collection[str]) -> tuple[str, str, str]:
    """Return an option's spelling with dashes, and "=" with its value if that is in the same word: --a=b or -n8."""
    name, equals, value = word.lstrip("-").partition("=")
    name = name.replace("_", "-")
    if name in known:
        return name, equals, value
    if word[1:2] in known and word[2:3].isdecimal():
        return word[1], "=", word[2:]
    fits = [one for one in known if one.startswith(name)] if word.startswith("--") and len(name) >= _LONG_ENOUGH else []
    return (fits[0] if len(fits) == 1 else name), equals, value


def with_file(words: tuple[str, ...], read: ReadFile, *, first: bool) -> tuple[str, ...]:
    """Return the words with the options of the YAML file of --config, before all others or in its place.

    Programs that put them first know only ``--config FILE``, not ``--config=FILE``.

    Raises:
        UnreadableError: the file cannot be read, or is not so simple.
    """
    for n, word in enumerate(words):
        if word == "--config" or (word.startswith("--config=") and not first):
            apart = word == "--config"
            path = "".join(words[n + 1 : n + 2]) if apart else word.partition("=")[2]
            own = tuple(f"--{key}={value}" for key, value in keys(path, read).items() if value.lower() not in _OFF)
            behind = words[n + 1 + apart :]
            return (*own, *words[:n], *behind) if first else (*words[:n], *own, *with_file(behind, read, first=False))
    return words


def keys(path: str, read: ReadFile) -> dict[str, str]:
    """Return the keys of a YAML file and what stands behind them in their line; not those further in.

    Raises:
        UnreadableError: the file cannot be read, or it has keys that only a YAML parser finds.
    """
    lines = text(read, path, "file").splitlines()
    found: dict[str, str] = {}
    for line in lines:
        if match := _KEY.fullmatch(line.rstrip()):
            value = re.sub(r"(^|[ \t])#.*", "", match[3] or "").strip()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found[match[2]] = value[1:-1] if quoted else value
        elif not _NO_KEY.fullmatch(line):
            raise UnreadableError(f"file {path} is not one key a line: {line.strip()!r}")
    return found


def text(read: ReadFile, path: str, option: str) -> str:
    """Return the text of the file that an option names.

    Raises:
        RefusedError: it does not exist.
        UnreadableError: it cannot be read.
    """
    try:
        return read(path)
    except (OSError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        problem = (isinstance(error, OSError) and error.strerror) or "not a text file in UTF-8"
        absent = isinstance(error, FileNotFoundError) and "://" not in path
        raise (RefusedError if absent else UnreadableError)(f"{option} {path} cannot be read: {problem}") from error
