"""The command line as a whole: help, version, mistakes, required packages and imports."""

import os
import subprocess
import sys
from importlib import metadata

import pytest
from typer.testing import CliRunner

from gpuloader import cli
from gpuloader.cli.app import Commands, app
from gpuloader.errors import install_command


@pytest.fixture
def runner():
    return CliRunner()


def run(*arguments):
    """Run the command line in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "gpuloader", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_help_names_the_commands_and_shows_examples(runner):
    shown = runner.invoke(app, ["--help"])
    assert shown.exit_code == 0
    for word in ("mnist", "doctor", "Examples", "gpuloader doctor --place gpu:0", "--install-completion"):
        assert word in shown.output


def test_without_a_command_the_help_is_shown(runner):
    shown = runner.invoke(app, [])
    assert shown.exit_code == 0
    assert "Examples" in shown.output


def test_the_version(runner, monkeypatch):
    monkeypatch.setattr(metadata, "version", {"gpuloader": "1.2.3"}.__getitem__)
    assert runner.invoke(app, ["--version"]).output == "gpuloader 1.2.3\n"


def test_the_version_of_a_checkout_that_is_not_installed(runner, monkeypatch):
    def miss(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", miss)
    shown = runner.invoke(app, ["--version"])
    assert (shown.exit_code, shown.output) == (0, "gpuloader from a folder, not installed\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nothing"], "--nothing"),
        (["train"], "train"),
        (["mnist", "--epochs", "0"], "--epochs"),
        (["mnist", "--epochs", "many"], "--epochs"),
        (["mnist", "more"], "more"),
        (["doctor", "--place"], "--place"),
    ],
)
def test_a_mistake_is_told_in_one_line(runner, arguments, message):
    shown = runner.invoke(app, arguments)
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert shown.stderr.count("\n") == 1
    assert message in shown.stderr


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_its_packages_it_says_what_to_install(package, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith(("gpuloader.cli.", package))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(cli, "app", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr() == (
        "",
        f"the command line needs {package}, which is not installed: {install_command('cli')}\n",
    )


def test_a_module_of_ours_that_is_missing_is_no_package_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "gpuloader.cli.app", raising=False)
    monkeypatch.delattr(cli, "app", raising=False)
    monkeypatch.setitem(sys.modules, "gpuloader.cli.mnist", None)
    with pytest.raises(ModuleNotFoundError):
        cli.main()


def test_it_runs_as_a_module_and_as_a_program():
    assert run("--version").stdout.startswith("gpuloader ")
    assert run("train").returncode == 2


def test_ctrl_c_before_a_command_begins_ends_with_the_same_line(runner, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Commands, "make_context", interrupt)
    shown = runner.invoke(app, ["doctor"])
    assert (shown.exit_code, shown.stdout, shown.stderr) == (130, "", "Interrupted.\n")


def test_ctrl_c_before_the_command_line_is_read_ends_with_the_same_line(monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuloader.cli.app.app", interrupt)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130
    assert capsys.readouterr() == ("", "Interrupted.\n")


def test_a_locale_of_few_letters_is_no_failure():
    """With an ASCII locale, marks become ASCII and other characters question marks."""
    poor = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for arguments in (["doctor"], ["doctor", "--help"]):
        shown = subprocess.run(
            [sys.executable, "-m", "gpuloader", *arguments],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env=poor,
        )
        assert (shown.returncode, shown.stderr) == (0, "")
        assert shown.stdout.isascii()
        assert arguments[1:] or "+  gpuloader" in shown.stdout


def test_the_help_imports_nothing_that_it_does_not_need():
    code = (
        "import sys\n"
        "from gpuloader.cli.app import app\n"
        "try:\n    app(['mnist', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = ('cupy', 'torch', 'matplotlib', 'gpuloader.demo', 'gpuloader.doctor', 'rich.progress')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    ).stdout
    assert shown.splitlines()[-1] == "[]"


def test_a_shell_can_complete_commands():
    words = {"COMP_WORDS": "gpuloader do", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'gpuloader'; from gpuloader.cli import main; main()"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "_GPULOADER_COMPLETE": "complete_bash", **words},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert shown.stdout.split() == ["doctor"]
