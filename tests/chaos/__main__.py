"""The standing attack on the command line.

python -m tests.chaos --seconds 600 --seed 5     attack for ten minutes
python -m tests.chaos --case 5:131 --times 20    run one case of that seed again
python -m tests.chaos --case '{"workers": 2}'    run the case that a finding has printed
python -m tests.chaos --case 5:131 --shrink      look for a smaller case with findings
python -m tests.chaos --soak 60                  load for an hour in one process
"""

from __future__ import annotations

import argparse
import secrets
import sys

from tests.chaos.campaign import repeat, run_campaign, show, shrink, usable_jobs
from tests.chaos.case import Case
from tests.chaos.drawing import draw_case
from tests.chaos.soak import soak


def find_case(text: str) -> Case:
    if text.startswith("{"):
        return Case.of_json(text)
    seed, number = map(int, text.split(":"))
    return draw_case(seed, number)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600, help="how long to attack")
    parser.add_argument("--seed", type=int, help="what to draw the cases from; random if left out")
    parser.add_argument("--jobs", type=int, default=usable_jobs(), help="cases at a time")
    parser.add_argument("--case", type=find_case, help="one case to run: SEED:NUMBER, or JSON")
    parser.add_argument("--times", type=int, default=1, help="how often to run it")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller case with findings")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="load for so long in one process")
    options = parser.parse_args()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    if options.soak is not None:
        return soak(seed, options.soak)
    if options.case is None:
        return 1 if run_campaign(seed, options.seconds, options.jobs) else 0
    case = options.case
    if options.shrink:
        case = shrink(case, lambda one: any(v.findings for v in repeat(one, options.times, options.jobs)))
    verdicts = list(repeat(case, options.times, options.jobs))
    bad = [verdict for verdict in verdicts if verdict.findings]
    for verdict in bad:
        show(verdict, f"--case {case.to_json()}")
    print(f"{len(verdicts)} runs of {case.to_json()}: {len(bad)} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
