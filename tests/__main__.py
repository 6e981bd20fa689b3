"""Runs all tests: ``python -m tests``. Further arguments go to pytest.

Each part has a pytest of its own, three at a time, since each waits for a third of its time. What one prints
stays together, and the totals are on the last line. Processes that share all tests would each collect all of
them, and their forks copy the tables of whatever has been imported: together a fifth more time.
"""

import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed

PARTS = (  # the longest first; an empty one stands for all that the others do not name
    ("tests/sources",),
    ("tests/fetch",),
    (),
    ("tests/api", "tests/batches"),
    ("tests/system", "tests/cli", "tests/chaos"),
    ("tests/kernels", "tests/transforms"),
    ("tests/order", "tests/epoch"),
)


def run(part: tuple[str, ...]) -> tuple[int, str]:
    """Return the exit status and the output of a pytest."""
    rest = [f"--ignore={folder}" for other in PARTS for folder in other]
    command = [sys.executable, "-m", "pytest", "--color=no", *(part or rest), *sys.argv[1:]]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def main() -> int:
    """Return the exit status: that of the first part that failed, or 0."""
    print(f"{len(PARTS)} parts, three at a time; each is shown when it has ended.", flush=True)
    begun, status, counts = time.monotonic(), 0, Counter[str]()
    with ThreadPoolExecutor(3) as pool:
        try:
            for done in as_completed([pool.submit(run, part) for part in PARTS]):
                failed, printed = done.result()
                print(printed, flush=True)
                if failed != 5 or not sys.argv[1:]:  # a part may have none of the tests that were chosen
                    status = status or failed
                last = (printed.splitlines() or [""])[-1]
                for count, what in re.findall(r"(\d+) (passed|failed|skipped|error)", last):
                    counts[what] += int(count)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    total = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(f"{total} in {time.monotonic() - begun:.2f}s")
    return status


if __name__ == "__main__":
    sys.exit(main())
