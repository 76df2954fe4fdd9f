"""What a check found, and how it is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """ERROR: the service would not work or not keep its promises. WARNING: it would, but someone should look."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what is the case, and what to do about it where that is wrong."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


def ok(subject: str, text: str) -> Finding:
    return Finding(Level.OK, subject, text)


def warning(subject: str, text: str, remedy: str) -> Finding:
    return Finding(Level.WARNING, subject, text, remedy)


def error(subject: str, text: str, remedy: str) -> Finding:
    return Finding(Level.ERROR, subject, text, remedy)


def one_line(problem: Exception) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__


def until(findings: Iterator[Finding], tell: Callable[[Exception], Finding | None]) -> list[Finding]:
    """All findings, up to an exception of which `tell` makes the last one; what it knows nothing of is raised."""
    found: list[Finding] = []
    try:
        for finding in findings:
            found.append(finding)  # one by one: an exception must not lose what came before it
    except Exception as problem:
        last = tell(problem)
        if last is None:
            raise
        found.append(last)
    return found


def has_errors(findings: Iterable[Finding]) -> bool:
    return any(finding.level is Level.ERROR for finding in findings)


def report(parts: Mapping[str, Sequence[Finding]]) -> str:
    """All findings by part of the service, for a person; the last line is the count."""
    lines = []
    for part, findings in parts.items():
        lines.append(part)
        for finding in findings:
            lines.append(f"  {finding.level.value:<8} {finding.subject:<18} {finding.text}")
            if finding.remedy:
                lines.append(f"  {'':<8} {'':<18} → {finding.remedy}")
    levels = [finding.level for findings in parts.values() for finding in findings]
    lines.append(f"errors: {levels.count(Level.ERROR)}, warnings: {levels.count(Level.WARNING)}")
    return "\n".join(lines) + "\n"
