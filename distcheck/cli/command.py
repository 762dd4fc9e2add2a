"""Turns functions into commands: how typer parses, checks and prints their options."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, ClassVar, NamedTuple, NoReturn, cast, get_args, get_origin

import msgspec
import typer
from typer.core import TyperCommand, TyperGroup

from distcheck.cli.declared import Declared, as_typed, kind_of, options_of
from distcheck.cli.options import Checking
from distcheck.cli.publish import REMEDY, print_to
from distcheck.facts.errors import UsageError
from distcheck.facts.policy import installed

_OPTION = re.compile(r"--[a-z][a-z-]*[a-z]")
_NO_POLICY = object()
_VARIABLES = "Each option can also be set by an environment variable: --timeout, for example, by DISTCHECK_TIMEOUT."


class Entry(NamedTuple):
    """A command, and its help."""

    function: Callable[..., None]
    short_help: str
    example: str
    more: tuple[str, ...]
    """Paragraphs after the example, as they are."""

    def add_to(self, app: typer.Typer) -> None:
        """Register the command with typer."""
        own = list(inspect.signature(self.function, eval_str=True).parameters.values())
        options = next((p.annotation for p in own if p.name == "options"), None)
        # \b: do not wrap this paragraph
        epilog = "".join(f"\b\n{part}\n\n" for part in (f"Example:\n  {self.example}", *self.more))
        if options is not None and issubclass(options, Checking):
            epilog += _VARIABLES
        declared = {} if options is None else options_of(options)
        kinds = {p.name: kind_of(get_args(p.annotation)[0]) for p in own if get_origin(p.annotation) is Annotated}
        kinds |= {name: option.kind for name, option in declared.items()}
        its_class = type("Command", (LazyCommand,), {"declared": declared, "kinds": kinds})
        register = app.command(short_help=self.short_help, epilog=epilog, cls=its_class)
        register(self.function if options is None else _taking(options, self.function, own))


def command(short_help: str, example: str, *more: str) -> Callable[[Callable[..., None]], Entry]:
    """Return a decorator that makes a function the command of its name.

    The fields of its parameter `options`, a struct of `distcheck.cli.options`, become the command's options.
    """
    return lambda function: Entry(function, short_help, example, more)


def _taking(options: type[msgspec.Struct], function: Callable[..., None], own: list[inspect.Parameter]) -> Any:
    """Return a function with the fields of `options` as parameters, which `function` gets in one value."""
    declared = options_of(options)
    given = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=declared[f.name].typed)
        for f in msgspec.structs.fields(options)
    ]
    arguments = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own if p.name != "options"]

    def called(**values: Any) -> None:
        # Older versions of typer make a default one of the choices.
        plain = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
        shared = {name: plain.pop(name) for name in declared}
        function(options=options(**shared), **plain)

    called.__signature__ = inspect.Signature(arguments + given)  # type: ignore[attr-defined]  # read by typer
    called.__annotations__ = {p.name: p.annotation for p in arguments + given}
    called.__doc__, called.__name__ = function.__doc__, function.__name__
    return called


class _Lazy:
    """What converts given values only."""

    declared: ClassVar[dict[str, Declared]] = {}
    """Its options by name, without those that typer adds."""
    kinds: ClassVar[dict[str, Any]] = {}
    """The type of each of its options and arguments."""

    def get_params(self, ctx: Any) -> Any:
        """Return the parameters, including --help."""
        return _taking_given_values(super().get_params(ctx))  # type: ignore[misc]  # of typer's class

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help, changed to report a stdout that is closed or full as every other output does."""
        option = super().get_help_option(ctx)  # type: ignore[misc]  # as above
        if option is not None:
            option.callback = _print_help
        return option


class LazyCommand(_Lazy, TyperCommand):
    """A command that prints its options in groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the words; refuse a -- that no COMMAND follows, because nothing would run and the exit code be 0."""
        runs = "command" in {param.name for param in self.params} and not ctx.resilient_parsing
        if runs and "--" in args and args.index("--") == len(args) - 1:
            problem = "COMMAND is empty, perhaps an unset variable; name a command or drop --"
            raise UsageError(f"--: {problem}. See: {ctx.command_path} --help")
        words = list(args)
        if "mode" in self.declared and (place := _policy(args, ctx)) is not _NO_POLICY:
            from distcheck.cli.policy_file import defaults

            settings = defaults(cast("Path | None", place), ctx.info_name)
            ctx.meta["distcheck.words"], ctx.default_map = words, settings
        try:
            return super().parse_args(ctx, args)
        except (UsageError, typer.BadParameter) as error:
            if not ctx.default_map:
                raise
            self._without_policy(ctx, str(error))
            return super().parse_args(ctx, words)

    def _without_policy(self, ctx: Any, why: str) -> None:
        """Go on without the policy, for an error that one of its options may have caused."""
        from distcheck.cli.policy_file import discard

        words = ctx.meta["distcheck.words"]
        discard(cast("Path | None", _policy(words, ctx)), why)
        ctx.default_map = None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about an option ends with the variable that set it, if one did.

        An error about an option that the policy set costs the policy and not the run.
        """
        try:
            return super().invoke(ctx)
        except UsageError as error:
            named = set(_OPTION.findall(str(error)))
            sources = {max(p.opts, key=len): _source(p, ctx) for p in ctx.command.params}
            if any(sources.get(option) == "DEFAULT_MAP" for option in named):
                self._without_policy(ctx, str(error))
                super().parse_args(ctx, list(ctx.meta["distcheck.words"]))
                return super().invoke(ctx)
            found = {max(p.opts, key=len): p.envvar for p in ctx.command.params if _source(p, ctx) == "ENVIRONMENT"}
            sets = [f"{variable} sets {option}" for option, variable in found.items() if option in named]
            if not sets:
                raise
            raise UsageError(f"{error} ({', '.join(sets)})") from error

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 typer's form
        """Return what follows the command's name in its usage, alike in all versions of typer."""
        arguments = [param for param in self.params if param.param_type_name == "argument"]
        return ["[OPTIONS]", *(f"[{argument.metavar}]..." for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, one section per group."""
        from distcheck.cli.help import by_group

        # In plain text: typer writes these groups only with rich, which is no dependency of distcheck.
        for name, records in by_group(self.get_params(ctx)).items():
            with formatter.section(name):
                formatter.write_dl(records)


def _policy(words: list[str], ctx: Any) -> object:
    """Return the file of --policy or its variable, None for that of /etc/distcheck, `_NO_POLICY` if there is none."""
    given = os.environ.get("DISTCHECK_POLICY", "")
    own = words[: words.index("--")] if "--" in words else words
    for word, following in zip(own, [*own[1:], ""], strict=False):
        if word == "--policy" or word.startswith("--policy="):
            given = word.partition("=")[2] or following
    if given:
        return Path(given)
    if ctx.resilient_parsing:
        return _NO_POLICY
    return None if installed() else _NO_POLICY


class LazyGroup(_Lazy, TyperGroup):
    """The group of the commands."""


def _print_help(ctx: Any, _param: Any, wanted: bool) -> None:  # noqa: FBT001 typer's form
    if wanted and not ctx.resilient_parsing:
        print_to(sys.stdout, f"{ctx.get_help()}\n", REMEDY)
        ctx.exit()


def _taking_given_values(params: list[Any]) -> list[Any]:
    """Return the parameters, changed to pass on their defaults and to convert what is given with msgspec.

    Newer versions of typer convert with a pydantic model for each parameter, given or not. Importing pydantic took a
    third of the start-up time. typer chooses the class of its parameters, so the method of each one is replaced.
    """
    for param in params:
        if "process_value" not in vars(param):
            param.process_value = partial(_process, param, param.process_value)
    return params


def _process(param: Any, convert: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """Return the value of a parameter.

    Raises:
        UsageError: it is not what the option accepts.
    """
    _refuse_empty(param, ctx, value)
    if value is param.default and not param.required:
        if value is None and (getattr(param, "multiple", False) or param.nargs == -1):
            value = ()  # typer 0.15 takes the length of a list that is not given
        return param.callback(ctx, param, value) if param.callback else value
    option: Declared | None = ctx.command.declared.get(param.name)
    kind = ctx.command.kinds.get(param.name)
    try:
        if kind in {None, bool}:
            converted = convert(ctx, value)
        else:
            converted = option.converted(value) if option else as_typed(value, kind)
    except (typer.BadParameter, msgspec.ValidationError, ValueError):
        if option is None:
            raise
        _refuse(param, ctx, value, option)
    if kind is Path and value.endswith("/") and param.metavar != "DIR" and not _is_folder(converted, param):
        # A Path does not have the last slash; a file would be written in place of the folder.
        raise UsageError(
            f"{_given(param, ctx, value)}: this folder does not exist; create it with: mkdir -p {quote(value)}"
        )
    if option and isinstance(converted, int | float) and not option.holds(converted):
        _refuse(param, ctx, value, option)
    return converted


def _is_folder(path: Path, param: Any) -> bool:
    """Return whether a path is a folder, or may be one that does not answer."""
    from distcheck.facts.touch import touch

    try:
        return touch(path, max(param.opts, key=len), path.is_dir)
    except TimeoutError:
        return True
    except OSError:
        return False


def _refuse_empty(param: Any, ctx: Any, value: Any) -> None:
    """Refuse an empty value on the command line: a script's unset variable must not leave an option without effect."""
    is_option = param.param_type_name == "option"
    is_path = ctx.command.kinds.get(param.name) == list[Path]  # words of COMMAND may be empty
    words = value if isinstance(value, list | tuple) else [value]
    if (is_option or is_path) and "" in words and _source(param, ctx) == "COMMANDLINE":
        name = max(param.opts, key=len) if is_option else param.metavar
        raise UsageError(
            f"{name} '': the value is empty, perhaps an unset variable; give a value or drop {name}. "
            f"See: {ctx.command_path} --help"
        )


def _source(param: Any, ctx: Any) -> str:
    """Return where a value is from: COMMANDLINE, ENVIRONMENT or DEFAULT."""
    source = ctx.get_parameter_source(param.name)
    return "" if source is None else str(source.name)


def _given(param: Any, ctx: Any, value: Any) -> str:
    option = max(param.opts, key=len)
    from_variable = _source(param, ctx) == "ENVIRONMENT"
    return f"{param.envvar}={value} ({option})" if from_variable else f"{option} {value}"


def _refuse(param: Any, ctx: Any, value: Any, declared: Declared) -> NoReturn:
    raise UsageError(f"{_given(param, ctx, value)}: {declared.expected}. See: {ctx.command_path} --help") from None
