"""The command line as a whole: help, version, mistakes, Ctrl-C, poor terminals and imports."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from gpuloader import cli
from tests.cli.running import invoke


def run(*arguments, **options):
    """Run the command line in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "gpuloader", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **options,
    )


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_help_names_the_commands_and_shows_examples(arguments):
    shown = invoke(*arguments)
    assert (shown.exit_code, shown.stderr) == (0, "")
    for word in ("mnist", "doctor", "bench", "examples", "gpuloader doctor --place gpu:0"):
        assert word in shown.stdout


def test_each_command_has_a_help():
    for command, option in (("mnist", "--epochs"), ("doctor", "--json"), ("bench", "--repeats")):
        shown = invoke(command, "--help")
        assert shown.exit_code == 0
        assert option in shown.stdout


def test_the_version(monkeypatch):
    monkeypatch.setattr(metadata, "version", {"gpuloader": "1.2.3"}.__getitem__)
    assert invoke("--version").stdout == "gpuloader 1.2.3\n"


def test_the_version_of_a_checkout_that_is_not_installed(monkeypatch):
    def miss(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", miss)
    shown = invoke("--version")
    assert (shown.exit_code, shown.stdout) == (0, "gpuloader from a folder, not installed\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nothing"], "--nothing"),
        (["train"], "train"),
        (["mnist", "--epochs", "0"], "--epochs"),
        (["mnist", "--epochs", "many"], "--epochs"),
        (["mnist", "--epoch", "3"], "--epoch"),
        (["mnist", "more"], "more"),
        (["doctor", "--place"], "--place"),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments, message):
    shown = invoke(*arguments)
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert shown.stderr.count("\n") == 1
    assert message in shown.stderr


def test_it_runs_as_a_module_and_as_a_program():
    assert run("--version").stdout.startswith("gpuloader ")
    assert run("train").returncode == 2


def test_ctrl_c_before_a_command_begins_ends_with_one_line(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "make_parser", interrupt)
    shown = invoke("doctor")
    assert (shown.exit_code, shown.stdout, shown.stderr) == (130, "", "Interrupted.\n")


def test_a_reader_that_has_gone_is_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "gpuloader", "--version"],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=100,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_a_locale_of_few_letters_is_no_failure():
    """With an ASCII locale, marks become ASCII and other characters question marks."""
    poor = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for arguments in (["doctor"], ["doctor", "--help"]):
        shown = run(*arguments, env=poor)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.isascii()
        assert arguments[1:] or "+  gpuloader" in shown.stdout


def test_the_help_imports_nothing_that_it_does_not_need():
    code = (
        "import sys\n"
        "from gpuloader.cli import main\n"
        "try:\n    main(['mnist', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = ('cupy', 'torch', 'matplotlib', 'gpuloader.demo', 'gpuloader.doctor')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    ).stdout
    assert shown.splitlines()[-1] == "[]"


def test_a_status_is_a_line_that_goes_again_and_only_on_a_terminal(monkeypatch, capsys):
    cli.show_status("working …")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    cli.show_status("working …")
    cli.show_status("")
    assert capsys.readouterr() == ("", "\r\033[Kworking …\r\033[K")
