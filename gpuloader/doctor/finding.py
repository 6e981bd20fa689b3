"""The doctor's report: findings in sections, and whether a loader would work."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Verdict = Literal["good", "note", "bad"]
"""'bad': a loader would fail here. 'note': it works, but not as well as it could or not as expected."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes
    ----------
    name : str
        The name of the checked item.
    value : str
        The observed state.
    verdict : Verdict
        The consequence for a loader.
    advice : str
        What to do, in a sentence or two; empty if nothing needs to be done.

    >>> Finding("cores", "2 of 2").verdict
    'good'
    """

    name: str
    value: str
    verdict: Verdict = "good"
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Findings about one part of the machine."""

    title: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about a machine.

    Attributes
    ----------
    sections : tuple of Section
        The sections in display order.

    >>> report = Report((Section("memory", (Finding("/dev/shm", "missing", "note", "Mount it."),)),))
    >>> report.works, report.count("note")
    (True, 1)
    >>> report.to_json()[0]["section"]
    'memory'
    """

    sections: tuple[Section, ...]

    @property
    def works(self) -> bool:
        """Whether a loader would work: no finding is bad."""
        return not self.count("bad")

    def count(self, verdict: Verdict) -> int:
        """Return the number of findings with this verdict."""
        return sum(one.verdict == verdict for section in self.sections for one in section.findings)

    def to_json(self) -> list[dict[str, str]]:
        """Return the findings as plain data, each with its section's title."""
        return [
            {"section": section.title, **asdict(finding)}
            for section in self.sections
            for finding in section.findings
        ]


def show_bytes(count: int) -> str:
    """Format a number of bytes for people.

    >>> show_bytes(8 << 20), show_bytes(1536), show_bytes(12)
    ('8.0 MiB', '1.5 KiB', '12 bytes')
    """
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
