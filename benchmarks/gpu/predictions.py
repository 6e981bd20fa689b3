"""What bounds a batch on a GPU, predicted from figures of the host and the machine's bandwidths.

python benchmarks/gpu/predictions.py

The loop's thread, the processes, the link and the GPU's memory work at the same time, so a batch takes as
long as the slowest of them. `run.py` sets the predictions beside what it has measured; one that is off by
more than a half is refuted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

LINK = 55e9  # bytes per second of PCIe 5.0 with 16 lanes, of 63e9 on the wire
MEMORY = {"H100": 3.0e12, "H200": 4.3e12}  # bytes per second, nine tenths of what the data sheets say
LAUNCH = 3e-6  # of a copy or a kernel on the device, however small
WORKERS = 8
FILL = 24e9  # bytes per second that 8 processes copy into slots: 64 MiB took 2.7 ms beside an H200
DECODE = 0.57e-3  # seconds of a core for a JPEG of 500 x 375 by TurboJPEG 3, with the rest of the sample
PICTURE = 224 * 224 * 3
OFF = 1.5


@dataclass(frozen=True, slots=True)
class Configuration:
    """A batch, and the case that measures it.

    Attributes
    ----------
    title : str
        What the batch is.
    host, calls : float
        Seconds of the thread that asks for batches: its own, as `host.py` measured them beside the H200, and
        those of CUDA's calls, which took 1 to 7 µs each there.
    copied : float
        Bytes over the link.
    moved : float
        Bytes that kernels read and write.
    kernels : int
        Launches and copies on the device.
    filled : float
        Bytes that processes copy into slots.
    decoded : int
        JPEG files that processes decode.
    measured : (str, str, float) or None
        How a case of `run.py` begins, its row, and what turns its figure into seconds for a batch.
    """

    title: str
    host: float
    calls: float
    copied: float = 0
    moved: float = 0
    kernels: int = 1
    filled: float = 0
    decoded: int = 0
    measured: tuple[str, str, float] | None = None

    def parts(self, gpu: str) -> dict[str, float]:
        """Return the seconds of each part of a batch on a GPU, all of which run at once.

        >>> parts = CONFIGURATIONS[3].parts("H100")
        >>> max(parts, key=parts.get)
        'link'
        """
        return {
            "host": self.host + self.calls,
            "filling slots": self.filled / FILL,
            "link": self.copied / LINK + (LAUNCH if self.copied else 0),
            "memory": self.moved / MEMORY[gpu] + self.kernels * LAUNCH,
            "decoding": self.decoded * DECODE / WORKERS,
        }


_ROW = 100 * 785 * 4
_FLOATS = 128 * PICTURE * 5  # bytes of pictures that are read, and floats that are written
CONFIGURATIONS = (
    Configuration(
        "rows of 100 KB, from a generator",
        32e-6,
        12e-6,  # and a copy of rows twice as large as those of `host.py`
        copied=100e3,
        measured=("host time of a ready batch", "from_generator, reader ahead", 1e-6),
    ),
    Configuration(
        "cached rows, 100 x 784 float32",
        37e-6,
        12e-6,
        moved=2 * _ROW,
        measured=("host time of a ready batch", "arrays on the device, 100 x 784, gathered there", 1e-6),
    ),
    Configuration("cached and augmented, 64 x 28 x 28", 57e-6, 14e-6, moved=64 * 1024 * 6, kernels=3),
    Configuration(
        "64 MiB, slots filled already",
        15e-6,
        8e-6,
        copied=2**26,
        measured=("copies of 64 MiB", "gpuloader, prefilled slots", 1e-6),
    ),
    Configuration(
        "128 images of bytes by 8 processes, normalized",
        70e-6,  # estimated, here and below: `host.py` has no images
        20e-6,
        copied=128 * PICTURE,
        moved=_FLOATS,
        filled=128 * PICTURE,
        measured=("8,192 images", "gpuloader, bytes, Normalize on the device", 1e-3 / 64),
    ),
    Configuration(
        "128 JPEG files by 8 processes, resized and normalized on the GPU",
        70e-6,
        20e-6,
        copied=128 * 500 * 375 * 3 * 0.5,  # RandomResizedCrop sends about half of a picture
        moved=128 * 500 * 375 * 3 * 0.5 + 128 * PICTURE * 4,
        decoded=128,
    ),
)


def render_predictions(report: dict[str, Any]) -> str:
    """Return a table of the predictions, beside what a report of `run.py` has measured on one of the GPUs."""
    name = report.get("machine", {}).get("gpu") or ""
    lines = [
        "",
        "**Predictions**, µs per batch",
        "",
        f"| batch | {' | '.join(MEMORY)} | bound | measured | |",
    ]
    lines += ["|---|" + "---:|" * len(MEMORY) + "---|---:|---|"]
    for one in CONFIGURATIONS:
        found = {gpu: max(one.parts(gpu).items(), key=lambda part: part[1]) for gpu in MEMORY}
        bounds = " or ".join(dict.fromkeys(part for part, _ in found.values()))
        seconds = _find(one, report)
        expected = next((found[gpu][1] for gpu in MEMORY if gpu in name), None)
        word = ""
        if seconds is not None and expected is not None:
            word = "confirmed" if expected / OFF <= seconds <= expected * OFF else "**refuted**"
        cells = [one.title, *(f"{found[gpu][1] * 1e6:,.0f}" for gpu in MEMORY), bounds]
        lines.append(
            f"| {' | '.join(cells)} | {'' if seconds is None else f'{seconds * 1e6:,.0f}'} | {word} |"
        )
    return "\n".join(lines)


def _find(one: Configuration, report: dict[str, Any]) -> float | None:
    if one.measured is None:
        return None
    begin, row, factor = one.measured
    for case in report.get("cases", ()):
        if case["case"].startswith(begin) and row in case["rows"]:
            return float(case["rows"][row]["median"]) * factor
    return None


if __name__ == "__main__":
    print(render_predictions({}))
