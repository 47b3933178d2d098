"""Reading and writing files where somebody else may have been before.

A crash leaves the old content or the new, never half; what it leaves beside is swept by the next
command that writes there. A file is a file: nothing is read or written through a link, a pipe or a
device, and how large a file may be is asked before it is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import socket
import stat
import time
import zlib
from collections.abc import Iterator
from io import BufferedReader, FileIO
from pathlib import Path

from pfl_bench.base.processes import is_alive

_ABANDONED_SECONDS = 24 * 3600
"""Writing takes no longer, wherever the process is that does it."""
_TEMPORARY = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-(?P<pid>\d{1,10})-[0-9a-f]{8}\.tmp")
_LONGEST_NAME = 40
"""Letters of a file's name that its temporary one repeats; with the rest it fits any system."""
_CAUTIOUS = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


class IrregularFile(OSError):
    """Not the file it should be: a link, a pipe, a device, a folder, or far too large."""

    def __init__(self, path: Path, what: str, number: int = errno.EINVAL) -> None:
        super().__init__(number, what, str(path))


def open_regular(path: Path, most: int | None = None) -> BufferedReader:
    """`path` for reading, if it is itself a plain file of at most so many bytes; IrregularFile for
    a link, a folder, a pipe, a device, or one that is larger."""
    return BufferedReader(_checked(path, os.O_RDONLY, most))


def read_regular(path: Path, most: int) -> bytes:
    """The content of a plain file of at most so many bytes; see `open_regular`."""
    with open_regular(path, most) as file:
        # No more is asked for than there is: as much memory would be taken.
        content = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
    if len(content) > most:  # it grew meanwhile
        raise IrregularFile(path, f"it has more than {most:,} bytes", errno.EFBIG)
    return content


def append_to(path: Path) -> FileIO:
    """The regular file at `path`, made where there is none, to be written at its end. Unbuffered,
    so that a full disk is an error of the write and not of a later close."""
    return _checked(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, None)


def irregularity(path: Path, folder: bool = False) -> str | None:
    """What stands at `path` in place of a file, or of a folder, as a clause ("it is …"); None where
    all is well or nothing is there."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if (stat.S_ISDIR if folder else stat.S_ISREG)(mode) else _kind(mode)


def _checked(path: Path, flags: int, most: int | None) -> FileIO:
    # Asked by name first: not every system has O_NOFOLLOW, and opening a device can do things.
    if what := irregularity(path):
        raise IrregularFile(path, what)
    handle = os.open(path, flags | _CAUTIOUS, 0o666)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise IrregularFile(path, _kind(found.st_mode))
        if most is not None and found.st_size > most:
            size = f"it has {found.st_size:,} bytes; allowed: {most:,}"
            raise IrregularFile(path, size, errno.EFBIG)
        return FileIO(handle, "ab" if flags & os.O_APPEND else "rb")
    except BaseException:
        os.close(handle)
        raise


def _kind(mode: int) -> str:
    for is_it, what in (
        (stat.S_ISLNK, "a symbolic link, and links are not followed"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISREG, "a file"),
    ):
        if is_it(mode):
            return f"it is {what}"
    return "it is a device"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes `path`'s place atomically. A link
    at `path` is replaced, not followed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sweep(path.parent)
    temporary = path.with_name(_temporary_name(path.name))
    # Made here with the rights that the user's umask leaves, which a later opening keeps.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _CAUTIOUS, 0o666))
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Put `content` at `path`, whole or not at all."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def size_in_words(count: float) -> str:
    """So many bytes, as people read them."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.4g} {unit}"
        count /= 1000
    return f"{count:.4g} GB"


def sweep(folder: Path) -> None:
    """Remove the temporary files of processes of this machine that are dead, and of any that are
    a day old. That it cannot be done is no reason not to write."""
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(folder)):
            match = _TEMPORARY.fullmatch(entry.name)
            if match and _is_abandoned(entry, match["host"], int(match["pid"])):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)  # noqa: PTH108 - an entry is no Path


def _temporary_name(name: str) -> str:
    return f".{name[:_LONGEST_NAME]}.{_host()}-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"


def _is_abandoned(entry: os.DirEntry[str], host: str, pid: int) -> bool:
    if time.time() - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED_SECONDS:
        return True
    return host == _host() and not is_alive(pid)
