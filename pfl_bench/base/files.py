"""Reading and writing files: a crash leaves the old content or the new, never half, and what lies
in a folder that may be a stranger's is opened only if it is a plain file of bearable size.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

_READING = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe that nobody writes to would wait for ever
)


def open_regular(path: Path, most: int | None = None) -> BufferedReader:
    """`path` for reading, if it is itself a plain file of at most so many bytes; an `OSError` for
    a link, a folder, a pipe, a device, or one that is larger."""
    if stat.S_ISLNK(os.lstat(path).st_mode):  # not every system has O_NOFOLLOW
        raise OSError(errno.ELOOP, "it is a symbolic link, and links are not followed", str(path))
    file = open(os.open(path, _READING), "rb")  # noqa: PTH123, SIM115
    try:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a plain file", str(path))
        if most is not None and status.st_size > most:
            size = f"it has {status.st_size:,} bytes; allowed: {most:,}"
            raise OSError(errno.EFBIG, size, str(path))
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path, most: int) -> bytes:
    """The content of a plain file of at most so many bytes; see `open_regular`."""
    with open_regular(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:  # it grew meanwhile
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return content


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes `path`'s place atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Put `content` at `path`, whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)
