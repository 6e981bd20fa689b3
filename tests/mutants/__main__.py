"""Try the mutants of modules: ``make mutants MODULE=gpuloader/staging.py``, or a package."""

import argparse
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutants.belonging import find_tests, list_modules
from tests.mutants.changes import Mutant, list_mutants
from tests.mutants.running import copied_project, replace_module, run_tests

CAUGHT, SURVIVED, UNTRIED, INTERRUPTED = 0, 1, 2, 130
"""The exit status: every mutant was caught; some were not; the tests fail without a change; Ctrl-C."""


@dataclass
class Tally:
    """What happened to the mutants of one module."""

    module: str
    all: int
    tried: int = 0
    overdue: int = 0
    survivors: list[Mutant] = field(default_factory=list)

    def __str__(self) -> str:
        of = "" if self.tried == self.all else f" of {self.all}"
        late = f" ({self.overdue} by the time limit)" if self.overdue else ""
        survived = len(self.survivors)
        caught = f"{self.tried - survived} caught{late}"
        return f"{self.module}: {self.tried}{of} mutants, {caught}, {survived} survived"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background jobs ignore it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    tallies: list[Tally] = []
    try:
        with copied_project() as tree:
            for module in list_modules(options.module):
                if not _try_module(module, tree, options, tallies):
                    return UNTRIED
    except KeyboardInterrupt:
        print("interrupted")
        return INTERRUPTED
    finally:
        _report(tallies)
    return SURVIVED if any(tally.survivors for tally in tallies) else CAUGHT


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("module", help="a file, FILE:LINE for the mutants of one line, or a folder")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="runs the tests")
    parser.add_argument("--sample", type=int, help="mutants to try per module, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    limit = "seconds per mutant; default: 10, and 5 times the tests alone"
    parser.add_argument("--limit", type=float, help=limit)
    options = parser.parse_args(arguments)
    # The tests run in another folder. Resolving the path would leave the environment that it stands for.
    options.python = options.python.absolute()
    return options


def _try_module(module: Path, tree: Path, options: argparse.Namespace, tallies: list[Tally]) -> bool:
    """Try a module's mutants; return False if its tests fail without a change."""
    name, tests = str(module), find_tests(module)
    _, _, line = options.module.partition(":")
    source = (tree / module).read_text()  # the working tree may be edited meanwhile
    mutants = [mutant for mutant in list_mutants(source) if not line or mutant.line == int(line)]
    tally = Tally(name, len(mutants))
    tallies.append(tally)
    if options.sample is not None and options.sample < len(mutants):
        drawn = random.Random(options.seed).sample(range(len(mutants)), options.sample)
        mutants = [mutants[number] for number in sorted(drawn)]
    begun = time.monotonic()
    status = run_tests(options.python, tree, tests, limit=600, is_first=True) if mutants else 0
    if status != 0:
        print((tree.parent / "output").read_text(errors="replace"))
        print(f"{name}: the tests fail without a change: {' '.join(tests)}")
        return False
    took = time.monotonic() - begun
    limit = 10 + 5 * took if options.limit is None else options.limit
    for mutant in mutants:
        replace_module(tree / module, mutant.source)
        status = run_tests(options.python, tree, tests, limit)
        tally.tried += 1
        tally.overdue += status is None
        if status == 0:
            tally.survivors.append(mutant)
        _show_progress(tally, len(mutants))
    replace_module(tree / module, source)
    print(f"\r{tally} in {time.monotonic() - begun:.0f} s, limit {limit:.0f} s", flush=True)
    return True


def _show_progress(tally: Tally, count: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{tally.module}: {tally.tried}/{count}, {len(tally.survivors)} survived")


def _report(tallies: list[Tally]) -> None:
    if not tallies:
        return
    rows = [(tally.module, mutant) for tally in tallies for mutant in tally.survivors]
    if rows:
        print("\nsurvivors, with the line as it is and as it was changed:")
    for module, mutant in rows:
        print(f"{module}:{mutant.line}\n    - {mutant.before}\n    + {mutant.after}")
    tried, of = sum(one.tried for one in tallies), sum(one.all for one in tallies)
    print(f"\n{tried} of {of} mutants tried, {tried - len(rows)} caught, {len(rows)} survived")


if __name__ == "__main__":
    sys.exit(main())
