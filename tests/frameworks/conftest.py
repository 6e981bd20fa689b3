"""Keeps pytest from importing the programs that the tests of this folder launch."""

collect_ignore_glob = ["*_program.py"]
