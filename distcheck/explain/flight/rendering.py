"""Renders the answer to Flight Recorder dumps as text, Markdown or JSON."""

from __future__ import annotations

import msgspec

from distcheck.explain.flight.answer import CalledAlike, FlightAnswer
from distcheck.facts.quantities import count
from distcheck.facts.ranges import numbered
from distcheck.rules.wording import listed

_MOST_LINES = 12
_MOST_UNREAD = 8
_MOST_TENSORS = 4
_DAY_SECONDS = 86_400


def as_json(answer: FlightAnswer) -> str:
    """Return the answer as one JSON document on one line."""
    return msgspec.json.encode(answer).decode() + "\n"


def as_text(answer: FlightAnswer) -> str:
    """Return the answer as text."""
    lines = [answer.text]
    if answer.causes:
        first = answer.causes[0]
        lines += ["", *(f"  {line}" for line in _calls(first.calls)), "", f"fix: {first.fix.text}"]
        lines += [f"  $ {command}" for command in first.fix.commands]
        if answer.causes[1:]:
            lines += ["", "also:", *(f"  {cause.text}" for cause in answer.causes[1:])]
    else:
        lines += ["", "next:", *(f"  $ {command}" for command in answer.next)]
    if not answer.causes or set(answer.ranks) - set(answer.causes[0].calls):
        lines += ["", "where each rank is:", *(f"  {line}" for line in _calls(answer.ranks))]
    lines += ["", *_rest(answer)] if _rest(answer) else []
    return "\n".join([*lines, ""])


def as_markdown(answer: FlightAnswer) -> str:
    """Return the answer as Markdown."""
    from distcheck.explain.rendering import fenced
    from distcheck.report.markdown import escaped

    blocks = [f"## {escaped(answer.text)}"]
    if answer.causes:
        first = answer.causes[0]
        blocks += [fenced("\n".join(_calls(first.calls))), f"**Fix:** {escaped(first.fix.text)}"]
        blocks += [fenced("\n".join(first.fix.commands), "bash")]
        if answer.causes[1:]:
            blocks += ["**Also:**", "\n".join(f"- {escaped(cause.text)}" for cause in answer.causes[1:])]
    else:
        blocks += ["**Next:**", fenced("\n".join(answer.next), "bash")]
    blocks += ["**Where each rank is:**", fenced("\n".join(_calls(answer.ranks)))] if answer.ranks else []
    blocks += ["\n".join(f"- {escaped(line)}" for line in _rest(answer))] if _rest(answer) else []
    return "\n\n".join(blocks) + "\n"


FLIGHT_RENDERERS = {"text": as_text, "json": as_json, "markdown": as_markdown}


def _rest(answer: FlightAnswer) -> list[str]:
    """Return what was not there, not placed, not compared and not read, one line each."""
    lines = []
    if answer.missing_ranks:
        on = f" ({listed(answer.missing_nodes)})" if answer.missing_nodes else ""
        lines.append(f"no dump: {numbered(answer.missing_ranks, 16)}{on}")
    if unknown := answer.ranks_without_node:
        lines.append(f"node unknown: {numbered(unknown, 16)}, not in the saved job")
    lines += [f"not compared: {note}" for note in answer.notes]
    lines += [f"not read: {reason}" for reason in answer.unread[:_MOST_UNREAD]]
    rest = len(answer.unread) - _MOST_UNREAD
    return lines + [f"not read: {count(rest, 'more file')}"] * (rest > 0)


def _calls(calls: tuple[CalledAlike, ...]) -> list[str]:
    lines = [line for call in calls[:_MOST_LINES] for line in _call(call)]
    rest = sum(len(call.ranks) for call in calls[_MOST_LINES:])
    return lines + [f"and {count(rest, 'more rank')} elsewhere"] * bool(rest)


def _call(call: CalledAlike) -> list[str]:
    on = f" ({listed(call.nodes)})" if call.nodes else ""
    parts = [f"{call.name}, collective {call.collective} of {call.group}"]
    parts += [part for part in (_sizes(call), call.state) if part]
    parts += [f"called {_clock(call.called_at_ns)}"] if call.called_at_ns > 0 else []
    if call.duration_ms is not None:
        parts.append(f"took {call.duration_ms:.3g} ms")
    elif call.timeout_ms and call.state != "completed":
        parts.append(f"timeout {call.timeout_ms / 1000:g} s")
    head = f"{numbered(call.ranks, 8)}{on}: {', '.join(parts)}"
    return [head, f"    at {call.where}"] if call.where else [head]


def _sizes(call: CalledAlike) -> str:
    """Return the sizes of the tensors: [1024] Float, or [8] to [16] Float if inputs and outputs differ."""
    inputs, outputs = _tensors(call.input_sizes), _tensors(call.output_sizes)
    text = inputs if inputs == outputs else f"{inputs or 'nothing'} to {outputs or 'nothing'}"
    return f"{text} {'/'.join(dict.fromkeys(call.dtypes))}".strip()


def _tensors(sizes: tuple[tuple[int, ...], ...]) -> str:
    more = f" and {len(sizes) - _MOST_TENSORS} more" if len(sizes) > _MOST_TENSORS else ""
    return " ".join(str(list(shape)) for shape in sizes[:_MOST_TENSORS]) + more


def _clock(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 10**9)
    seconds %= _DAY_SECONDS
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest // 10**6:03} UTC"
