"""Tests of every page of the README and the docs: Python blocks run, commands exist, links lead somewhere.

A page's blocks run in order, in one namespace and in an empty folder. They may be indented, as they are in
tabs. A ``text`` block right after a ``python`` block must show exactly what that block prints, up to trailing
whitespace. Two comments, which readers do not see, change this::

    <!-- needs: torch -->      before a block: it needs a package outside the `dev` extra, `gpu` or `network`
    <!-- output varies -->     between a block and its output: what it prints is not compared

A block whose need is missing is compiled but not run. `network` is always missing. `-m frameworks`
selects the pages whose blocks need a package outside the `dev` extra, and what else asks such a package.
"""

import builtins
import contextlib
import doctest
import gc
import importlib.util
import inspect
import io
import re
import shlex
import sys
import tomllib
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

import gpuloader
from gpuloader import errors
from gpuloader.devices import cuda, places
from gpuloader.devices.places import cuda_places
from tests.fakes import loader_threads, wait_until
from tests.fakes_cuda import FakeRuntime, make_cupy, run_twins

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS]
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)")
NEEDS = re.compile(r"^ *<!-- needs: (?P<words>[\w ,.]+) -->$")
VARIES = "<!-- output varies -->"
SHELL = ("sh", "bash", "console")
ELSEWHERE = {"cd", "export", "git", "source", "docker", "nsys", "compute-sanitizer", "curl", "ssh"}


@dataclass
class Block:
    language: str
    line: int
    needs: tuple[str, ...]
    text: str = ""
    output: "Block | None" = None
    varies: bool = False


def read_blocks(path):
    """Return the fenced blocks of a page. A Python block's `output` is the ``text`` block right after it."""
    blocks, block, indent = [], None, ""
    above = ""  # the last line that is not empty
    before, varies = None, False  # the block that ended right above, and whether its output varies
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if block is None and (fence := FENCE.match(line)):
            needs = NEEDS.match(above)
            words = tuple(re.split(r"[ ,]+", needs["words"])) if needs else ()
            block, indent = Block(fence["language"], number, words), fence["indent"]
            if block.language == "text" and before is not None and before.language == "python":
                before.output, before.varies = block, varies
        elif block is None:
            varies = varies or line.strip() == VARIES
            before = before if line.strip() in ("", VARIES) else None
        elif line.strip() == "```":
            blocks.append(block)
            before, block, varies = block, None, False
        else:
            block.text += line.removeprefix(indent) + "\n"
        above = line or above
    assert block is None, f"{path}: the block that begins on line {block.line} has no end"
    return blocks


def by_name(path):
    return str(path.relative_to(ROOT))


def is_there(what):
    if what == "network":
        return False
    if what == "gpu":
        try:
            return bool(cuda_places())
        except gpuloader.PlaceError:
            return False
    return importlib.util.find_spec(what) is not None


def have(needs):
    if not all(is_there(what) for what in needs):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some packages warn when they are first imported
        for what in needs:
            if what != "gpu":
                importlib.import_module(what)
    return True


def run_python(block, name, namespace, has=have):
    code, where = compile("\n" * block.line + block.text, name, "exec"), f"{name}:{block.line}"
    if not has(block.needs):
        return
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    got = lines_of(printed.getvalue())
    if block.output is None:
        assert not got, f"{where} prints, but no text block after it shows the output"
    elif block.varies:
        assert got, f"{where} prints nothing, but the page shows output"
    else:
        assert got == lines_of(block.output.text), f"{where} prints something else than the page shows"


def lines_of(text):
    return [line.rstrip() for line in text.rstrip().splitlines()]


def run_session(block, name, namespace):
    test = doctest.DocTestParser().get_doctest(block.text, namespace, name, name, block.line)
    assert test.examples, f"{name}:{block.line} has no prompt"
    if have(block.needs):
        told = []
        doctest.DocTestRunner(verbose=False).run(test, out=told.append, clear_globs=False)
        namespace.update(test.globs)
        assert not told, "".join(told)


def marked(path):
    """Return a page as a parameter, which is marked if its blocks need a framework."""
    needed = {what for block in read_blocks(path) for what in block.needs} - {"gpu", "network"}
    return pytest.param(path, marks=[pytest.mark.frameworks] if needed else [])


RUNNERS = {"python": run_python, "pycon": run_session}


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # from JAX, if another page has imported it
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of variables of Keras
@pytest.mark.parametrize("path", [marked(path) for path in DOCUMENTS], ids=by_name)
def test_python_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if path.name != "accelerate.md":  # another page may have imported it: variables then make no rank
        monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)
    namespace = {"__name__": "__main__"}
    for block in read_blocks(path):
        if block.language in RUNNERS:
            RUNNERS[block.language](block, by_name(path), namespace)
    namespace.clear()  # ends the epochs that the page left open
    gc.collect()
    if "accelerate.state" in sys.modules:  # while there is an Accelerator, loaders leave the division to it
        sys.modules["accelerate.state"].AcceleratorState._reset_state(reset_partial_state=True)
    wait_until(lambda: not loader_threads())


def test_every_example_of_a_guide_shows_its_output():
    for path in (ROOT / "docs/guides").glob("*.md"):
        shown = [block for block in read_blocks(path) if block.language == "python" and not block.needs]
        assert [f"{by_name(path)}:{block.line}" for block in shown if block.output is None] == []


def commands():
    """Return every command of every shell block, with lines joined and without comments and prompts."""
    found = []
    for path in DOCUMENTS:
        for block in read_blocks(path):
            if block.language not in (*SHELL, ""):
                continue
            for line in block.text.replace("\\\n", " ").splitlines():
                line = re.sub(r"(^|\s)#.*|^\$ |^(\w+=\S* )+", "", line)
                if line.strip() and (block.language or line.split()[0] in CHECKS):
                    words = shlex.split(line)
                    found.append(pytest.param(words, id=f"{by_name(path)}:{block.line} {line}"))
    return found


def check_make(words):
    makefile = (ROOT / "Makefile").read_text()
    for target in words[1:]:
        assert "=" in target or re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target}"


def check_pip(words):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for wanted in re.findall(r"(?:gpuloader|\.)\[([\w,]+)\]", " ".join(words)):
        assert set(wanted.split(",")) <= set(extras), f"no extra {wanted}"


def check_gpuloader(words):
    from gpuloader.cli import make_parser

    shown = io.StringIO()
    command = [] if not words[1:] or words[1].startswith("-") else words[1:2]
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit) as ended:
        make_parser().parse_args([*command, "--help"])
    assert not ended.value.code, f"no command {command}"
    options = set(re.findall(r"(?<![\w-])--?[a-z]+\b", shown.getvalue()))
    for word in words[1:]:
        assert not word.startswith("-") or word.split("=")[0] in options, f"no option {word}"


def check_python(words):
    arguments = [word for word in words[1:] if not word.startswith("-")]
    module = "-m" in words and words[words.index("-m") + 1]
    if module:
        assert module.split(".")[0] in ("pip", "pytest", "gpuloader", "tests", "torch", "benchmarks"), module
        if module == "pip":
            check_pip(words)
    elif arguments:
        check_script(arguments)


def check_script(words):
    script = next((word for word in words if word.endswith(".py")), words[0])
    assert script.startswith("train") or (ROOT / script).exists(), script


CHECKS = {
    ".ci/run": check_script,
    "gpuloader": check_gpuloader,
    "make": check_make,
    "pip": check_pip,
    "python": check_python,
    "torchrun": check_script,
}


@pytest.mark.parametrize("words", commands())
def test_commands_exist(words):
    assert words[0] in CHECKS or words[0] in ELSEWHERE, f"unknown command {words[0]}"
    CHECKS.get(words[0], lambda _: None)(words)


def text_of(path):
    """Return a page without its blocks, because brackets in code are not links."""
    return re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path):
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)", text_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=by_name)
def test_links_lead_to_a_page_and_a_heading_in_the_repository_too(path):
    for target in re.findall(r"\]\(([^)#\s]+)", text_of(path)):
        assert target.startswith("https://") or (path.parent / target).exists(), target
    # Only the site has anchors of docstrings; there, links to documents of the root lead to its copies.
    for file, anchor in re.findall(r"\]\((?!https:)([^)#\s]*)#([^)\s]+)\)", text_of(path)):
        if not anchor.startswith("gpuloader."):
            assert anchor in anchors(path.parent / file if file else path), f"{file}#{anchor}"


def test_the_tests_that_the_pages_name_exist():
    for path in DOCS:
        for file, names in re.findall(r"`(tests/[\w/.]+)((?:::\w+)*)`", path.read_text()):
            assert (ROOT / file).exists(), file
            for name in names.split("::")[1:]:
                assert re.search(rf"^ *(?:class|def) {name}\b", (ROOT / file).read_text(), re.MULTILINE), name


def test_the_guide_explains_every_error_and_the_tree_of_errors_is_complete():
    classes = filter(inspect.isclass, vars(errors).values())
    own = {one.__name__ for one in classes if issubclass(one, errors.LoaderError)}
    guide, reference = ((ROOT / f"docs/{page}/errors.md").read_text() for page in ("guides", "reference"))
    assert set(re.findall(r"^### ([A-Z]\w+)", guide, re.MULTILINE)) == own
    tree = dict(re.findall(r"── (\w+)(?: +also an? (\w+))?", reference))
    assert set(tree) == own - {"LoaderError"}
    for name, builtin in tree.items():
        assert not builtin or issubclass(getattr(errors, name), getattr(builtins, builtin)), name


def first_column(path, heading):
    """Return the code in the first column of the table under a heading."""
    section = path.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)
    return [word for row in rows for word in re.findall(r"`(\w+)`", row)]


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("module", "page", "heading"),
    [
        ("torch.utils.data", "coming-from-torch.md", "DataLoader, argument by argument"),
        ("paddle.io", "coming-from-paddle.md", "`paddle.io.DataLoader`"),
    ],
)
def test_every_argument_of_their_loaders_is_answered(module, page, heading):
    loader = pytest.importorskip(module).DataLoader
    theirs = set(inspect.signature(loader.__init__).parameters) - {"self"}
    assert theirs <= set(first_column(ROOT / "docs" / page, heading))


def test_every_option_of_the_loader_is_in_a_guide_and_in_one_group_of_the_reference():
    told = "".join(path.read_text() for path in DOCS if path.parent.name in ("guides", "docs"))
    options = sorted(inspect.signature(gpuloader.DataLoader).parameters)
    assert [name for name in options if not re.search(rf"`{name}\b|\b{name}=", told)] == []
    assert sorted(first_column(ROOT / "docs/reference/loaders.md", "DataLoader by topic")) == options


def test_blocks_for_a_gpu_run_over_the_stand_in(monkeypatch):
    cupy = pytest.importorskip("cupy")
    runtime = FakeRuntime()
    monkeypatch.setattr(cuda, "cupy", make_cupy(cupy, runtime))
    run_twins(monkeypatch, runtime)
    places._opened.clear()
    blocks = [(path, block) for path in DOCS for block in read_blocks(path) if block.needs == ("gpu",)]
    assert blocks
    for path, block in blocks:
        run_python(block, by_name(path), {"__name__": "__main__"}, has=bool)
    gc.collect()
    places._opened.clear()
    assert not runtime.registered
