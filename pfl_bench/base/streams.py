"""Standard output and error of a command: what may pass through them, and what happens where they
are closed, full or gone.

Notes, captions and names of folders come from files that may be a stranger's, and a terminal obeys
what is written to it. So everything that is printed passes one filter here. What pfl-bench itself
draws on a terminal goes through `pfl_bench.base.terminal`.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

_CONTROLS = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
_INVISIBLE = [0x7F, *range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_SHOWN = {**_CONTROLS, **dict.fromkeys([*_INVISIBLE, 0x2028, 0x2029], "\N{REPLACEMENT CHARACTER}")}


def printable(text: str) -> str:
    """`text` with a mark for each letter that a terminal would obey instead of showing it, such as
    the one that begins a change of colour, of the title, of the clipboard or of the direction."""
    return text.translate(_SHOWN)


class Stream(io.TextIOBase):
    """A text stream that writes what is printable, and whose failure is not the command's.

    A reader who has gone, as in `| head`, is no error. On an `optional` stream nothing is: progress
    that cannot be printed is not worth a training. Once it has failed, it writes nowhere.
    """

    def __init__(self, inner: TextIO, *, optional: bool, plain: bool = True) -> None:
        self._inner, self._optional, self._plain = inner, optional, plain
        self._failure: Exception | None = None

    @property
    def obeyed(self) -> Stream:
        """The same stream without the filter, for what draws on a terminal and filters itself."""
        return Stream(self._inner, optional=self._optional, plain=False)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Whatever the terminal knows: what it cannot show is shown as a number."""
        return "utf-8"

    @property
    def buffer(self) -> Any:
        """Bytes, for what is written as it is."""
        return self._inner.buffer

    def write(self, text: str) -> int:
        self._attempt(lambda: self._inner.write(printable(text) if self._plain else text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._inner.flush)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._inner.isatty()

    def fileno(self) -> int:
        return self._inner.fileno()

    def _attempt(self, act: Callable[[], object]) -> None:
        if self._failure is None:
            try:
                act()
            except (OSError, ValueError) as error:
                self._failure = error
                _divert(self._inner)
        excused = self._optional or isinstance(self._failure, BrokenPipeError)
        if self._failure is not None and not excused:
            raise self._failure


def _divert(stream: TextIO) -> None:
    """Let what is still to be written, here and when the process ends, go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Print through `Stream` meanwhile."""
    _fill_closed()
    before = sys.stdout, sys.stderr
    sys.stdout = _guard(sys.stdout, optional=False)
    sys.stderr = _guard(sys.stderr, optional=True)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):  # whoever printed has been told
            sys.stdout.flush()
        sys.stdout, sys.stderr = before


def _guard(stream: TextIO | None, optional: bool) -> Any:
    if stream is None:  # it was closed before Python began
        stream = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    return Stream(stream, optional=optional)


def _fill_closed() -> None:
    """A file that is opened must not take the place of a closed standard stream: what libraries
    write there would be written into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
