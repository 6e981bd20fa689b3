"""What the examination of a machine says: findings in sections, and whether a loader would work."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Verdict = Literal["good", "note", "bad"]
"""'bad': a loader would fail here. 'note': it works, less well than it could or not as one may expect."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    name : str
        What was looked at.
    value : str
        What was found.
    verdict : Verdict
        What that means for a loader.
    advice : str
        What to do, a sentence; empty where nothing is to be done.

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
    """All that was found.

    Attributes
    ----------
    sections : tuple of Section
        In the order in which they are shown.

    >>> report = Report((Section("memory", (Finding("/dev/shm", "missing", "note", "Mount it."),)),))
    >>> report.works, report.count("note")
    (True, 1)
    >>> report.to_json()[0]["section"]
    'memory'
    """

    sections: tuple[Section, ...]

    @property
    def works(self) -> bool:
        """Whether nothing was found that makes a loader fail."""
        return not self.count("bad")

    def count(self, verdict: Verdict) -> int:
        """Return how many findings have this verdict."""
        return sum(one.verdict == verdict for section in self.sections for one in section.findings)

    def to_json(self) -> list[dict[str, str]]:
        """Return the findings as plain data, each with the title of its section."""
        return [
            {"section": section.title, **asdict(finding)}
            for section in self.sections
            for finding in section.findings
        ]


def show_bytes(count: int) -> str:
    """Return a number of bytes to be read by people.

    >>> show_bytes(8 << 20), show_bytes(1536), show_bytes(12)
    ('8.0 MiB', '1.5 KiB', '12 bytes')
    """
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
