"""The command that installs an optional part of the package, from where the package itself came."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

_NAME = "gpuloader"
_HERE = Path(__file__).resolve().parents[2]


def install_command(extra: str = "", *, force: bool = False) -> str:
    """Return the ``pip install`` command for the package, with one of its extras.

    Parameters
    ----------
    extra : str
        The name of the extra, such as 'cli'; empty for the package alone.
    force : bool
        Whether to install what is already there once more.

    Returns
    -------
    str
        A command that works in the present folder. A package that runs from a checkout, or was installed from
        one, is installed from there; one from a URL or a file, from that; any other, by its name.

    Examples
    --------
    >>> install_command("cli")  # doctest: +ELLIPSIS
    "pip install '...[cli]'"
    """
    what = "pip install --force-reinstall" if force else "pip install"
    return f"{what} '{describe_source(_HERE, read_origin(), Path.cwd(), extra)}'"


def describe_source(here: Path, origin: dict[str, object], folder: Path, extra: str) -> str:
    """Return the requirement for an extra.

    Parameters
    ----------
    here : pathlib.Path
        The folder that holds the package's folder.
    origin : dict
        The contents of the distribution's ``direct_url.json``; empty if there is none.
    folder : pathlib.Path
        The present folder.
    extra : str
        The name of the extra.

    Examples
    --------
    >>> site, home = Path("/usr/lib/site-packages"), Path("/home/ann")
    >>> describe_source(site, {}, home, "cli")
    'gpuloader[cli]'
    >>> wheel = {"url": "file:///tmp/gpuloader-1.0-py3-none-any.whl", "archive_info": {}}
    >>> describe_source(site, wheel, home, "cli")
    'gpuloader[cli] @ file:///tmp/gpuloader-1.0-py3-none-any.whl'
    """
    extra = f"[{extra}]" if extra else ""
    checkout = here if _is_checkout(here) else _find_folder(origin)
    if checkout is not None:
        return f".{extra}" if checkout == folder else f"{checkout}{extra}"
    url, version_control = origin.get("url"), origin.get("vcs_info")
    if not isinstance(url, str) or "dir_info" in origin:
        return f"{_NAME}{extra}"
    if isinstance(version_control, dict):
        url = f"{version_control.get('vcs')}+{url}@{version_control.get('commit_id')}"
    return f"{_NAME}{extra} @ {url}"


@cache
def read_origin() -> dict[str, object]:
    """Return where the installed distribution came from, as pip has noted it; empty if it came from an index.

    >>> isinstance(read_origin(), dict)
    True
    """
    # Imported late, because these modules take long to import and only errors need them.
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    with suppress(PackageNotFoundError, ValueError, OSError):
        noted = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
        return noted if isinstance(noted, dict) else {}
    return {}


def _is_checkout(folder: Path) -> bool:
    with suppress(OSError, UnicodeDecodeError):
        return f'name = "{_NAME}"' in (folder / "pyproject.toml").read_text(encoding="utf-8")
    return False


def _find_folder(origin: dict[str, object]) -> Path | None:
    """Return the checkout that a distribution was installed from, if it is still there."""
    url = origin.get("url")
    if "dir_info" not in origin or not isinstance(url, str):
        return None
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    folder = Path(url2pathname(urlsplit(url).path))
    return folder if _is_checkout(folder) else None
