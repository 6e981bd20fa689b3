"""Count the instructions of kernels in their machine code: evidence about their speed that needs no GPU.

python benchmarks/gpu/instructions.py [--architecture N] [--output FILE.json] [--beside FILE.json]

It needs the packages nvidia-cuda-nvrtc and nvidia-cuda-nvdisasm. A count is that of the shortest way through
the code on which a thread loads and stores at least so many bytes, by instructions of at least that width,
and ends. So the first item includes what a thread does once; `more` is what a second item adds. A predicated
instruction counts even where its predicate is false. `--beside` adds the counts of another commit, from what
`--output` has written there.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpuloader.kernels.compiler import compile_kernel, find_nvrtc

WINDOW = 12  # bytes that describe an image's window


@dataclass(frozen=True, slots=True)
class Way:
    """How a thread does an item of its work.

    Attributes
    ----------
    entry : str
        The kernel's entry.
    loaded, load : int
        The bytes that it loads, and the fewest that one of its loads takes.
    stored, store : int
        The same of its stores.
    """

    entry: str
    loaded: int
    load: int
    stored: int
    store: int


@dataclass(frozen=True)
class Case:
    """Work of one thread.

    Attributes
    ----------
    title : str
        What is counted.
    kernel : str
        The kernel's file.
    ways : tuple of Way
        How a thread may do it, newest first; the first that there is counts.
    once : int
        Bytes that it loads once: of a window, or of indices.
    """

    title: str
    kernel: str
    ways: tuple[Way, ...]
    once: int = 0


_OLD_CROP = Way("crop<unsigned char>", 4, 1, 4, 4)
_PIXELS = "normalize<unsigned char, float>"

CASES = (
    Case("crop, 16 bytes at once", "crop", (Way("crop<uint4>", 32, 4, 16, 16), _OLD_CROP), WINDOW),
    Case("crop, 4 bytes at once", "crop", (Way("crop<unsigned int>", 8, 4, 4, 4), _OLD_CROP), WINDOW),
    Case(
        "normalize, 4 pixels of 3 bytes to planes",
        "normalize",
        (Way(_PIXELS, 16, 4, 48, 16), Way(_PIXELS, 12, 1, 48, 16)),
    ),
    Case(
        "normalize, 4 values to pixels",
        "normalize",
        (Way(_PIXELS, 8, 4, 16, 16), Way(_PIXELS, 4, 1, 16, 16)),
    ),
    Case("gather, 4 words of 16 bytes", "gather", (Way("gather<uint4>", 64, 8, 64, 16),), 8),
)


@dataclass(frozen=True, slots=True)
class Count:
    """What a thread executes.

    Attributes
    ----------
    instructions, loads, stores : int
        All instructions, and among them the loads from and the stores to global memory.
    nbytes : int
        The bytes that they store.
    """

    instructions: int
    loads: int
    stores: int
    nbytes: int


@dataclass
class Block:
    """Instructions that run one after the other.

    Attributes
    ----------
    count, loads, stores : int
        The instructions, and among them the loads from and the stores to global memory.
    loaded, stored : int
        The bytes that they load and store.
    load, store : int
        The fewest bytes that one of them takes.
    following : list of str
        The labels of the blocks that may come next; empty at the end of the thread.
    ends : bool
        Whether the thread may end here.
    """

    count: int = 0
    loads: int = 0
    stores: int = 0
    loaded: int = 0
    stored: int = 0
    load: int = 16
    store: int = 16
    following: list[str] = field(default_factory=list)
    ends: bool = False


_LABEL = re.compile(r"^\s*(\.L_\w+|\.text\.\S+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+\{?\s*(@!?U?PT?\d*\s+)?([A-Z][\w.]*)([^;]*);")
_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "16": 2, "U8": 1, "S8": 1, "8": 1}


def find_disassembler() -> str:
    """Return the path of nvdisasm: of the environment's package, or on the PATH."""
    folder = Path(sysconfig.get_paths()["purelib"], "nvidia")
    found = sorted(folder.glob("*/bin/nvdisasm")) or [shutil.which("nvdisasm")]
    if found[0] is None:
        sys.exit("no nvdisasm: pip install nvidia-cuda-nvdisasm")
    return str(found[0])


def disassemble(code: bytes) -> dict[str, str]:
    """Return the text of each function in machine code, by its mangled name."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code + b"\0")  # CuPy's binding of NVRTC leaves out the last byte
        file.flush()
        command = [find_disassembler(), "-c", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    parts = re.split(r"^\.text\.(\S+):", text, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def parse(text: str) -> dict[str, Block]:
    """Return the blocks of a function by their labels; the first one's is empty."""
    blocks = {"": Block()}
    label, number = "", 0
    for line in text.splitlines():
        if found := _LABEL.match(line):
            blocks[label].following.append(found[1])
            label = found[1]
            blocks[label] = Block()
        elif found := _INSTRUCTION.search(line):
            condition, name, operands = found.groups()
            block = blocks[label]
            block.count += 1
            operation, *details = name.split(".")
            width = next((_WIDTHS[one] for one in details if one in _WIDTHS), 4)
            is_load, is_store = operation == "LDG", operation == "STG"
            block.loads += is_load
            block.stores += is_store
            block.loaded += width * is_load
            block.stored += width * is_store
            block.load = min(block.load, width) if is_load else block.load
            block.store = min(block.store, width) if is_store else block.store
            if operation not in ("BRA", "EXIT"):
                continue
            if operation == "EXIT":
                block.ends = True
            else:
                block.following += re.findall(r"`\((\.L_\w+)\)", operands)
            number += 1
            label = f"after {number}"
            blocks[label] = Block()
            if condition or operands.strip().startswith(("P", "!P", "UP", "!UP", "DIV")):
                block.following.append(label)
    return blocks


def count(blocks: dict[str, Block], way: Way, items: int, once: int) -> Count | None:
    """Return the fewest instructions with which a thread does some items, or None if it cannot."""
    loaded, stored = once + items * way.loaded, items * way.stored
    waiting, seen = [(0, "", 0, 0, 0, 0)], set()
    while waiting:
        instructions, label, has_loaded, has_stored, loads, stores = heapq.heappop(waiting)
        block = blocks.get(label)
        if block is None or (label, has_loaded, has_stored) in seen:
            continue
        seen.add((label, has_loaded, has_stored))
        if block.load < way.load or block.store < way.store:
            continue
        instructions += block.count
        loads, stores = loads + block.loads, stores + block.stores
        has_loaded = min(has_loaded + block.loaded, loaded)
        has_stored = min(has_stored + block.stored, stored)
        if block.ends and has_loaded >= loaded and has_stored >= stored:
            return Count(instructions, loads, stores, stored)
        for following in block.following:
            heapq.heappush(waiting, (instructions, following, has_loaded, has_stored, loads, stores))
    return None


def measure(architecture: int) -> dict[str, dict[str, int]]:
    """Return each case's counts for the first item, and the instructions that a second one adds."""
    found: dict[str, dict[str, int]] = {}
    for case in CASES:
        functions = disassemble(compile_kernel(case.kernel, architecture))
        for way in case.ways:
            blocks = next(
                (parse(text) for name, text in functions.items() if demangle(name) == way.entry), {}
            )
            one, two = (count(blocks, way, items, case.once) for items in (1, 2))
            if one is not None and two is not None:
                found[case.title] = {**asdict(one), "more": two.instructions - one.instructions}
                break
    return found


_TYPES = {"h": "unsigned char", "t": "unsigned short", "j": "unsigned int", "y": "unsigned long long"}
_TYPES |= {"5uint4": "uint4", "f": "float", "4Half": "Half", "8Bfloat16": "Bfloat16"}


def demangle(name: str) -> str:
    """Return the entry of a mangled name, for templates of the types that kernels use.

    >>> demangle("_Z9normalizeIhfEvPKT_PKiPT0_6Images8Channels"), demangle("spin")
    ('normalize<unsigned char, float>', 'spin')
    """
    found = re.match(r"_Z\d+(\w+?)I((?:[htjyf]|\d[A-Za-z]+\d*?)+?)Ev", name)
    if not found:
        return name
    types = re.findall("|".join(sorted(_TYPES, key=len, reverse=True)), found[2])
    return f"{found[1]}<{', '.join(_TYPES[one] for one in types)}>"


def main() -> None:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", type=int, default=90, help="compute capability times ten")
    parser.add_argument("--output", type=Path, help="write the counts to this file")
    parser.add_argument("--beside", type=Path, help="counts of another commit")
    options = parser.parse_args()
    if find_nvrtc() is None:
        sys.exit("no NVRTC: pip install nvidia-cuda-nvrtc")
    found = measure(options.architecture)
    if options.output is not None:
        report = {"architecture": options.architecture, "counts": found}
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    reports = [found]
    if options.beside is not None:
        reports.insert(0, json.loads(options.beside.read_text())["counts"])
    print(f"| sm_{options.architecture} | {' | '.join(next(iter(found.values())))} |")
    print("|---|" + "---:|" * 5)
    for title in found:
        cells = [" → ".join(str(one[title][kind]) for one in reports) for kind in found[title]]
        print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
