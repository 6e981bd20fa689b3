"""The programs here are run by tests, and import what may not be installed."""

collect_ignore_glob = ["*_program.py"]
