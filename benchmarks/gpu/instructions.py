"""Count the instructions of kernels in their machine code: evidence about their speed that needs no GPU.

python benchmarks/gpu/instructions.py [--architecture N] [--output FILE.json] [--beside FILE.json]

It needs the packages nvidia-cuda-nvrtc and nvidia-cuda-nvdisasm. A count is that of the shortest way through
the code on which a thread loads and stores at least so many bytes. A predicated instruction counts even where
its predicate is false. `--beside` adds the counts of another commit, from what `--output` has written there.
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
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpuloader.kernels.compiling import compile_kernel, find_nvrtc

WINDOW = 12  # bytes that describe an image's window


@dataclass(frozen=True)
class Case:
    """Work of one thread, done by one of several entries: the first that there is.

    Attributes
    ----------
    title : str
        What is counted.
    kernel : str
        The kernel's file.
    entries : tuple of (str, int, int)
        Entries, newest first, each with the bytes that a thread loads, indices and windows included, and
        those that it stores.
    nbytes : int
        Bytes of the result to which counts are scaled.
    """

    title: str
    kernel: str
    entries: tuple[tuple[str, int, int], ...]
    nbytes: int


_OLD_CROP = ("crop<unsigned char>", WINDOW + 4, 4)
_PIXELS = "normalize<unsigned char, float>"

CASES = (
    Case("crop, 16 bytes, aligned", "crop", (("crop<uint4>", WINDOW + 16, 16), _OLD_CROP), 16),
    Case("crop, 16 bytes, any address", "crop", (("crop<uint4>", WINDOW + 32, 16), _OLD_CROP), 16),
    Case("crop, 16 bytes in words of 4", "crop", (("crop<unsigned int>", WINDOW + 8, 4), _OLD_CROP), 16),
    Case("normalize, 4 pixels to 3 planes, aligned", "normalize", ((_PIXELS, 12, 48),), 48),
    Case("normalize, 4 pixels to 3 planes, any address", "normalize", ((_PIXELS, 16, 48),), 48),
    Case("normalize, 4 values to pixels", "normalize", ((_PIXELS, 4, 16),), 16),
    Case("gather, 4 words of 16 bytes", "gather", (("gather<uint4>", 72, 64),), 64),
    Case("gather, 4 rows of 4 bytes", "gather", (("gather<unsigned int>", 48, 16),), 16),
)


@dataclass
class Block:
    """Instructions that run one after the other.

    Attributes
    ----------
    count, loaded, stored : int
        The instructions, and the bytes that they load from and store to global memory.
    following : list of str
        The labels of the blocks that may come next; empty at the end of the thread.
    ends : bool
        Whether the thread may end here.
    """

    count: int = 0
    loaded: int = 0
    stored: int = 0
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
            block.loaded += width if operation == "LDG" else 0
            block.stored += width if operation == "STG" else 0
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


def count(blocks: dict[str, Block], loaded: int, stored: int) -> int:
    """Return the fewest instructions with which a thread loads and stores so many bytes, and ends."""
    waiting, seen = [(0, "", 0, 0)], set()
    while waiting:
        instructions, label, has_loaded, has_stored = heapq.heappop(waiting)
        if (label, has_loaded, has_stored) in seen or label not in blocks:
            continue
        seen.add((label, has_loaded, has_stored))
        block = blocks[label]
        instructions += block.count
        has_loaded = min(has_loaded + block.loaded, loaded)
        has_stored = min(has_stored + block.stored, stored)
        if block.ends and has_loaded >= loaded and has_stored >= stored:
            return instructions
        for following in block.following:
            heapq.heappush(waiting, (instructions, following, has_loaded, has_stored))
    raise ValueError(f"no way through the code loads {loaded} and stores {stored} bytes")


def measure(architecture: int) -> dict[str, float]:
    """Return each case's instructions."""
    found: dict[str, float] = {}
    functions: dict[str, dict[str, str]] = {}
    for case in CASES:
        if case.kernel not in functions:
            functions[case.kernel] = disassemble(compile_kernel(case.kernel, architecture))
        for entry, loaded, stored in case.entries:
            name = next((one for one in functions[case.kernel] if demangle(one) == entry), None)
            if name is not None:
                fewest = count(parse(functions[case.kernel][name]), loaded, stored)
                found[case.title] = fewest * case.nbytes / stored
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
    before = json.loads(options.beside.read_text())["counts"] if options.beside is not None else {}
    for title, instructions in found.items():
        other = f"{before[title]:8.0f} ->" if title in before else ""
        print(f"{title:46} {other} {instructions:8.0f}")


if __name__ == "__main__":
    main()
