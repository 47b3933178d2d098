"""Files: whole or not at all, with the rights the user wants, and nothing through a link."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pfl_bench.base.files import (
    IrregularFile,
    append_to,
    irregularity,
    open_regular,
    read_regular,
    replacing,
    sweep,
    write_atomically,
)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links and pipes of another kind")


def link(path: Path) -> None:
    target = path.with_name("target")
    target.write_bytes(b"precious")
    path.symlink_to(target)


def dangling(path: Path) -> None:
    path.symlink_to(path.with_name("not-there"))


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


KINDS = [(link, "symbolic link"), (dangling, "symbolic link"), (pipe, "named pipe"),
         (endless, "symbolic link"), (bound, "socket"), (Path.mkdir, "folder")]  # fmt: skip


@pytest.mark.parametrize(("make", "name"), KINDS)
@pytest.mark.parametrize("use", [lambda path: read_regular(path, 100), open_regular, append_to])
def test_what_is_no_file_is_neither_read_nor_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], None],
    name: str,
    use: Callable[[Path], object],
) -> None:
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    make(path := Path("file"))
    with pytest.raises(IrregularFile, match=name):
        use(path)
    assert name in str(irregularity(path))
    target = Path("target")
    assert not target.exists() or target.read_bytes() == b"precious"
    assert not Path("not-there").exists()


def test_a_file_is_read_up_to_its_limit_and_none_beyond_is(tmp_path: Path) -> None:
    (path := tmp_path / "file").write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(IrregularFile, match="it has 5 bytes; allowed: 4"):
        read_regular(path, 4)


def test_a_file_of_holes_is_not_read_at_all(tmp_path: Path) -> None:
    with (path := tmp_path / "file").open("wb") as file:
        file.truncate(2**40)
    began = time.monotonic()
    with pytest.raises(IrregularFile, match="allowed"):
        read_regular(path, 2**30)
    assert time.monotonic() - began < 1


def test_what_is_not_there_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "file", 5)
    assert irregularity(tmp_path / "file") is None


def test_appending_adds_to_what_there_is(tmp_path: Path) -> None:
    for piece in (b"one", b"two"):
        with append_to(tmp_path / "file") as file:
            file.write(piece)
    assert (tmp_path / "file").read_bytes() == b"onetwo"


def test_a_link_is_replaced_and_its_target_is_not_touched(tmp_path: Path) -> None:
    link(path := tmp_path / "file")
    write_atomically(path, "new")
    assert not path.is_symlink() and path.read_text() == "new"
    assert (tmp_path / "target").read_bytes() == b"precious"


@pytest.mark.parametrize(("mask", "rights"), [(0o077, 0o600), (0o022, 0o644), (0o002, 0o664)])
def test_a_file_has_the_rights_that_the_umask_leaves(
    tmp_path: Path, mask: int, rights: int
) -> None:
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "written", "new")
        append_to(tmp_path / "appended").close()
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == rights


def test_any_name_can_be_written(tmp_path: Path) -> None:
    write_atomically(path := tmp_path / ("é" * 127), "new")
    assert path.read_text() == "new"


KILLED = """
import os, signal, sys
from pathlib import Path
from pfl_bench.base.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_swept_by_the_next_that_writes_there(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "report.html"], check=False)
    (left,) = tmp_path.iterdir()
    assert left.suffix == ".tmp"
    write_atomically(tmp_path / "other.csv", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["other.csv"]


def test_what_a_living_process_writes_is_left_to_it(tmp_path: Path) -> None:
    with replacing(tmp_path / "a") as temporary:
        sweep(tmp_path)
        temporary.write_text("whole")
    assert (tmp_path / "a").read_text() == "whole"


def test_of_another_machine_only_what_is_old_is_swept_and_never_what_is_not_ours(
    tmp_path: Path,
) -> None:
    theirs = tmp_path / ".a.npz.00000000-99999999-0123abcd.tmp"
    old = tmp_path / ".b.npz.00000000-99999999-0123abcd.tmp"
    others = [tmp_path / name for name in (".notes.tmp", "draft.tmp", ".x.00000000-1-a.tmp")]
    for path in (theirs, old, *others):
        path.write_text("something")
    two_days_ago = time.time() - 2 * 24 * 3600
    for path in (old, *others):
        os.utime(path, (two_days_ago, two_days_ago))
    sweep(tmp_path)
    assert set(tmp_path.iterdir()) == {theirs, *others}
