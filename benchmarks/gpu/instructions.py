"""Count the instructions of kernels in their machine code: evidence about their speed that needs no GPU.

python benchmarks/gpu/instructions.py [--architecture N] [--output FILE.json] [--beside FILE.json]

It needs the packages nvidia-cuda-nvrtc and nvidia-cuda-nvdisasm. A count is that of the shortest way through
the code on which a thread loads and stores at least so many bytes, by instructions of at least that width,
passes so many instructions by which a branch can be told, and ends. So the first item includes what a thread
does once; `more` is what a second item adds, and `doubles` how many of those compute in double. A predicated
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

from benchmarks.gpu.compiling import compile_kernel
from gpuloader.kernels.compiler import find_nvrtc

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
    through : tuple of (str, int)
        How many instructions whose name matches so it passes; they tell which branch it takes.
    without : str
        It passes no block that has an instruction whose name matches so.
    """

    entry: str
    loaded: int
    load: int
    stored: int
    store: int
    through: tuple[tuple[str, int], ...] = ()
    without: str = "none"


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
_HUE = ("MUFU.RCP", 8)  # quotients of four pixels
_PIXELS = "normalize<unsigned char, float>"

CASES = (
    Case("crop, 16 bytes at once", "crop", (Way("crop<uint4>", 32, 4, 16, 16), _OLD_CROP), WINDOW),
    Case("crop, 4 bytes at once", "crop", (Way("crop<unsigned int>", 8, 4, 4, 4), _OLD_CROP), WINDOW),
    Case(
        "crop, 16 bytes at once of mirrored pixels of 3 bytes",
        "crop",
        (
            Way("crop<uint4>", 24, 4, 16, 16, (("LDG.E.CONSTANT", 6), ("PRMT", 5))),
            Way("crop<uint4>", 16, 1, 16, 16, (("LDG.E.U8", 16),)),
        ),
        WINDOW,
    ),
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
    Case(
        "normalize, 4 pixels of 3 bytes to planes of float16",
        "normalize",
        (Way("normalize<unsigned char, Half>", 12, 4, 24, 8, without="STG.E.128"),),
    ),
    Case(
        "normalize, 8 values to pixels of bfloat16",
        "normalize",
        (
            Way("normalize<unsigned char, Bfloat16>", 12, 4, 16, 8, (("STG.E.128", 1),)),
            Way("normalize<unsigned char, Bfloat16>", 8, 4, 16, 8),
        ),
    ),
    Case(
        "recolor, 4 pixels of 3 bytes to planes, by brightness, contrast, saturation and hue",
        "recolor",
        (
            Way("recolor<3, float>", 12, 4, 48, 16, (("FADD.FTZ.RZ", 36), ("FFMA.FTZ.RZ", 12), _HUE)),
            Way("recolor<3, float>", 12, 1, 48, 4, (("F2I.FTZ", 36), ("DMUL", 4))),
        ),
    ),
    Case(
        "measure, 4 pixels of 3 bytes, after brightness and hue",
        "recolor",
        (
            Way("measure<3>", 12, 4, 0, 4, (("FADD.FTZ.RZ", 12), ("FFMA.FTZ.RZ", 12), _HUE)),
            Way("measure<3>", 12, 1, 0, 4, (("F2I.FTZ", 12), ("DMUL", 4))),
        ),
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
    doubles : int
        The instructions that compute in double, or convert to or from it.
    """

    instructions: int
    loads: int
    stores: int
    nbytes: int
    doubles: int


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
    names : list of str
        The names of all instructions.
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
    names: list[str] = field(default_factory=list)
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
            block.names.append(name)
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
    goal = once + items * way.loaded, items * way.stored, *(items * number for _, number in way.through)
    counted = *(re.compile(pattern) for pattern, _ in way.through), _DOUBLE
    found = {
        label: (
            block.loaded,
            block.stored,
            *(sum(bool(pattern.match(name)) for name in block.names) for pattern in counted),
        )
        for label, block in blocks.items()
    }
    waiting, seen = [(0, "", (0,) * len(goal), 0, 0, 0)], set()
    while waiting:
        instructions, label, done, loads, stores, doubles = heapq.heappop(waiting)
        block = blocks.get(label)
        if block is None or (label, done) in seen:
            continue
        seen.add((label, done))
        if block.load < way.load or block.store < way.store:
            continue
        if any(re.match(way.without, name) for name in block.names):
            continue
        instructions += block.count
        loads, stores = loads + block.loads, stores + block.stores
        new = found[label]
        doubles += new[-1]
        done = tuple(min(sum(one), most) for *one, most in zip(done, new[:-1], goal, strict=True))
        if block.ends and done == goal:
            return Count(instructions, loads, stores, goal[1], doubles)
        for following in block.following:
            heapq.heappush(waiting, (instructions, following, done, loads, stores, doubles))
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
                more = two.instructions - one.instructions
                found[case.title] = {**asdict(one), "doubles": two.doubles - one.doubles, "more": more}
                break
    return found


_DOUBLE = re.compile(r"D[A-Z]+\b|\w+\.(?:\w+\.)*F64")
_TYPES = {"h": "unsigned char", "t": "unsigned short", "j": "unsigned int", "y": "unsigned long long"}
_TYPES |= {"5uint4": "uint4", "f": "float", "4Half": "Half", "8Bfloat16": "Bfloat16"}


def demangle(name: str) -> str:
    """Return the entry of a mangled name, for templates of the types that kernels use.

    >>> demangle("_Z9normalizeIhfEvPKT_PKiPT0_6Images8Channels"), demangle("_Z7recolorILi3EhEvPKh")
    ('normalize<unsigned char, float>', 'recolor<3, unsigned char>')
    """
    found = re.match(r"_Z\d+(\w+?)I((?:[htjyf]|Li\dE|\d[A-Za-z]+\d*?)+?)Ev", name)
    if not found:
        return name
    types = re.findall("|".join([*sorted(_TYPES, key=len, reverse=True), r"Li\dE"]), found[2])
    return f"{found[1]}<{', '.join(_TYPES.get(one, one[2:-1]) for one in types)}>"


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
    print("|---|" + "---:|" * 6)
    for title in found:
        cells = [
            " → ".join(str(one[title][kind]) for one in reports if title in one) for kind in found[title]
        ]
        print(f"| {title} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
