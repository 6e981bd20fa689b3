"""The command line as a whole: help, version, mistakes, Ctrl-C, poor terminals and imports."""

import os
import sys
from importlib import metadata

import pytest

from gpuloader import cli
from gpuloader.cli.bench import CASES
from tests.cli.running import invoke, run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *((given, ["mnist", "doctor", "bench", "show", "examples"]) for given in ([], ["-h"], ["--help"])),
        (["mnist", "--help"], ["--epochs"]),
        (["doctor", "--help"], ["--json"]),
        (["bench", "--help"], ["--repeats"]),
        (["show", "--help"], ["--count"]),
    ],
)
def test_the_help_names_commands_and_options(arguments, words):
    shown = invoke(*arguments)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert [word for word in words if word not in shown.stdout] == []
    assert ("gpuloader doctor --place gpu:0" in shown.stdout) == ("examples" in words)


def test_the_version_is_that_of_the_installed_distribution_if_there_is_one(monkeypatch):
    def miss(name):
        raise metadata.PackageNotFoundError(name)

    for version, told in (
        ({"gpuloader": "1.2.3"}.__getitem__, "1.2.3"),
        (miss, "from a folder, not installed"),
    ):
        monkeypatch.setattr(metadata, "version", version)
        shown = invoke("--version")
        assert (shown.exit_code, shown.stdout) == (0, f"gpuloader {told}\n")


NO_MNIST = "/nowhere/mnist.json.gz"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--nothing", ["--nothing"]),
        ("train", ["train"]),
        ("mnist --epochs 0", ["--epochs"]),
        ("mnist --epochs many", ["--epochs"]),
        ("mnist --epoch 3", ["--epoch"]),
        ("mnist more", ["more"]),
        ("mnist --wait -1", ["--wait: must be from 0 to 10000 milliseconds, got -1"]),
        ("mnist --wait nan", ["got nan"]),
        ("mnist --wait long", ["got long"]),
        ("mnist --wait inf", ["got inf"]),
        ("mnist --place abacus", ["not a place: 'abacus'"]),
        (f"mnist --place cpu --data {NO_MNIST}", [f"{NO_MNIST}: No such file"]),
        (f"mnist --place cpu --data {__file__}", [__file__]),
        ("mnist --place cpu --save /nowhere/digits.npz", ["/nowhere/digits.npz: No such file"]),
        ("mnist --place cpu --output /dev/null/folder", ["/dev/null"]),
        ("mnist --place cpu --output /proc", ["/proc/parameters.npz"]),  # nobody can create a file there
        ("doctor --place", ["--place"]),
        ("doctor --place abacus", ["abacus"]),
        ("bench --case nothing", ["nothing", *CASES]),
        ("bench --repeats 0", ["--repeats"]),
        ("bench --peer x", ["x"]),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_is_done(monkeypatch, arguments, words):
    monkeypatch.delenv("GPULOADER_MNIST", raising=False)
    shown = invoke(*arguments.split())
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert shown.stderr.count("\n") == 1
    assert [word for word in words if word not in shown.stderr] == []


def test_it_runs_as_a_module_and_output_that_cannot_be_written_is_no_traceback():
    assert run("-m", "gpuloader", "--version").stdout.startswith("gpuloader ")
    assert run("-m", "gpuloader", "train").returncode == 2
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:
        ended = run("-m", "gpuloader", "--version", stdout=gone)
    assert (ended.returncode, ended.stderr) == (1, "")
    if os.path.exists("/dev/full"):
        for buffered in ("", "1"):
            for words in (["--version"], ["--help"], ["show", "--help"], []):
                with open("/dev/full", "wb") as full:
                    ended = run(
                        "-m",
                        "gpuloader",
                        *words,
                        stdout=full,
                        env={**os.environ, "PYTHONUNBUFFERED": buffered},
                    )
                assert (ended.returncode, ended.stderr) == (2, "No space left on device\n")


def test_a_closed_output_is_no_traceback():
    """As with `gpuloader --version >&-` in a shell: Python has no such stream then."""
    code = "import os, sys\nos.close({})\nos.execv(sys.executable, [sys.executable, '-m', 'gpuloader', {!r}])"
    for closed, argument, exit_code in ((1, "--version", 0), (1, "train", 2), (2, "train", 2)):
        ended = run("-c", code.format(closed, argument))
        assert (ended.returncode, ended.stdout) == (exit_code, "")
        told = "" if closed == 2 or exit_code == 0 else "argument COMMAND: invalid choice"
        assert ended.stderr.startswith(told)
        assert "Traceback" not in ended.stderr


def test_ctrl_c_before_a_command_begins_ends_with_one_line(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "make_parser", interrupt)
    shown = invoke("doctor")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (130, "", "Interrupted.\n")


def test_the_doctor_of_this_machine_and_a_locale_of_few_letters():
    """With an ASCII locale, marks become ASCII and other characters question marks."""
    poor = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = run("-m", "gpuloader", "doctor", env=poor)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.isascii()
    assert "+  gpuloader" in shown.stdout
    for section in ("Software", "GPU", "Processors", "Memory"):
        assert section in shown.stdout
    assert run("-m", "gpuloader", "doctor", "--help", env=poor).stdout.isascii()


def test_the_help_imports_nothing_that_it_does_not_need():
    code = (
        "import sys\n"
        "from gpuloader.cli import main\n"
        "try:\n    main(['mnist', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = ('cupy', 'torch', 'matplotlib', 'gpuloader.demo', 'gpuloader.doctor')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    assert run("-c", code).stdout.splitlines()[-1] == "[]"


def test_a_status_is_a_line_that_goes_again_and_only_on_a_terminal(monkeypatch, capsys):
    cli.show_status("working …")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    cli.show_status("working …")
    cli.show_status("")
    assert capsys.readouterr() == ("", "\r\033[Kworking …\r\033[K")
