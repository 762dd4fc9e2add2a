"""Renders an answer as text, Markdown or JSON."""

from __future__ import annotations

import re

import msgspec

from distcheck.explain.answer import Answer, NamedCause, Telling, sentence

_SUBJECTS = {
    "start-up": "the start-up of the job",
    "network": "the network",
    "GPU": "a GPU",
    "process killed": "a process that was killed",
    "application": "the application, not the cluster",
}
_MOST_UNREAD = 8
_UNKNOWN = "No line of the log has an error that distcheck knows."


def as_json(answer: Answer) -> str:
    """Return the answer as one JSON document on one line."""
    return msgspec.json.encode(answer).decode() + "\n"


def as_text(answer: Answer) -> str:
    """Return the answer as text."""
    first, telling = answer.causes[0] if answer.causes else None, answer.telling
    if first and first.fix:
        lines = [f"{first.rule}: {first.summary}", "", *_where(first), "", f"fix: {first.fix.text}"]
        lines += [f"  $ {command}" for command in first.fix.commands]
        if answer.causes[1:]:
            lines += ["", "also possible:"]
            lines += [f"  {cause.rule}: {cause.summary}" for cause in answer.causes[1:]]
    elif telling:
        lines = [
            *_named(answer),
            _subject(answer),
            "",
            *([hang, ""] if (hang := _hang(answer)) else []),
            *_where(telling),
        ]
        lines += ["", says] if (says := _general(answer)) else []
    else:
        lines = [_UNKNOWN]
    if answer.next:
        lines += [
            "",
            "to prove it:" if first and first.fix else "next:",
            *(f"  $ {command}" for command in answer.next),
        ]
    if answer.later:
        lines += ["", "later, or a consequence:", *(f"  {_position(told)}: {told.text}" for told in answer.later)]
    if answer.unread:
        lines += ["", "not read:", *(f"  {reason}" for reason in answer.unread[:_MOST_UNREAD])]
        lines += [f"  and {len(answer.unread) - _MOST_UNREAD} more"] * (len(answer.unread) > _MOST_UNREAD)
    return "\n".join([*lines, ""])


def as_markdown(answer: Answer) -> str:
    """Return the answer as Markdown."""
    from distcheck.report.markdown import escaped

    first, telling = answer.causes[0] if answer.causes else None, answer.telling
    if first and first.fix:
        blocks = [f"## {escaped(str(first.rule))}", escaped(first.summary), escaped(_who(first)), fenced(first.text)]
        blocks += [f"**Fix:** {escaped(first.fix.text)}", *_commands(first.fix.commands)]
        if answer.causes[1:]:
            also = [f"- **{escaped(str(cause.rule))}**: {escaped(cause.summary)}" for cause in answer.causes[1:]]
            blocks += ["**Also possible:**", "\n".join(also)]
    elif telling:
        blocks = [
            "## No rule names this cause",
            *(f"**{escaped(words)}**" for words in _named(answer)),
            _subject(answer),
        ]
        blocks += [f"**{escaped(hang)}**"] if (hang := _hang(answer)) else []
        blocks += [escaped(_who(telling)), fenced(telling.text), escaped(_general(answer))]
    else:
        blocks = ["## No known error", _UNKNOWN]
    if answer.next:
        blocks += ["**To prove it:**" if first and first.fix else "**Next:**", *_commands(answer.next)]
    blocks += [f"**Not read:** {escaped('; '.join(answer.unread[:_MOST_UNREAD]))}"] if answer.unread else []
    return "\n\n".join(block for block in blocks if block) + "\n"


RENDERERS = {"text": as_text, "json": as_json, "markdown": as_markdown}


def _named(answer: Answer) -> list[str]:
    """Return the sentence that names a cause for which there is no rule."""
    return [cause.summary for cause in answer.causes[:1]]


def _subject(answer: Answer) -> str:
    about = f"It concerns {_SUBJECTS[str(answer.about)]}"
    return (
        f"{about}; no rule of distcheck looks for it."
        if answer.causes
        else f"The log does not name the cause. {about}."
    )


def _hang(answer: Answer) -> str:
    """Return what the lines of all ranks say, unless it is the cause and said already."""
    says = sentence(answer.hang.says) if answer.hang else ""
    return "" if answer.causes and says == answer.causes[0].summary else says


def _general(answer: Answer) -> str:
    """Return what the telling line means in general, unless the lines of all ranks say more, or it is said above."""
    known = answer.causes or (answer.hang and answer.hang.kind in {"mismatch", "behind", "together"})
    return answer.telling.says if answer.telling and not known else ""


def _where(told: NamedCause | Telling) -> list[str]:
    return [_who(told), f"  {told.text}"]


def _who(told: NamedCause | Telling) -> str:
    """Return where a line stands and who wrote it: "job.log:17, rank 3 on node2, 5 times"."""
    who = [f"rank {told.rank}"] if told.rank is not None else []
    who += [f"local rank {told.local_rank}"] if told.local_rank is not None else []
    who += [f"on {told.node}" if who else f"node {told.node}"] if told.node else []
    times = f", {told.times} times" if isinstance(told, NamedCause) and told.times > 1 else ""
    return _position(told) + (f", first seen at {' '.join(who)}" if who else "") + times


def _position(told: NamedCause | Telling) -> str:
    return f"{told.file}:{told.line}"


def _commands(commands: tuple[str, ...]) -> list[str]:
    return [fenced("\n".join(commands), "bash")] if commands else []


def fenced(text: str, language: str = "") -> str:
    """Return text in a fence longer than any run of backticks in it."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
