"""Tar files for tests to read."""

import io
import tarfile


def write_tar(path, members):
    """Write a tar file of members, which are pairs of a name and bytes, and return its path."""
    with tarfile.open(path, "w") as file:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path
