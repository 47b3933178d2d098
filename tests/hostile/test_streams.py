"""Output that is closed, full, unread or watched by a terminal: training goes on, the exit code
tells whether the result is kept, and no letter of a stranger's file is obeyed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import invoke, is_refused
from conftest import TABLE
from prepared import NAME

from pfl_bench.base.errors import UserError
from pfl_bench.base.streams import Stream, guarded, printable
from pfl_bench.base.terminal import standard_output
from pfl_bench.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
NASTY = "\x1b]0;mine\x07\x1b[31m\x9b31m\x7f‮"


# --- where output cannot be written ---------------------------------------------------------------


def shell(line: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command line of bash, in which `"$@"` is the run; its exit code is the run's."""
    program = [sys.executable, "-m", "pfl_bench", *map(str, arguments)]
    return subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}", "bash", *program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def run(data: Path, store: Store) -> list[object]:
    return [
        "run", "--algo", "fedavg", "--dataset", NAME, "--data-dir", data, "--results", store.root,
        "--clients", 2, "--batch-size", 8, "--rounds", 3, "--workers", 1, "--profile-time",
        "--seeds", 2,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [
        '"$@" 2>&1 | true',
        '"$@" 2>&-',
        '"$@" 2>/dev/full',
        '"$@" >&- 2>&-',
        '"$@" <&- >&- 2>&-',
        '"$@" | true',
    ],
)
def test_a_run_whose_progress_nobody_can_read_is_computed_and_kept(
    line: str, run: list[object], store: Store
) -> None:
    ended = shell(line, *run)
    assert ended.returncode == 0, ended.stderr
    assert [found.status for found in store.all()] == ["finished"] * 2
    assert "Error" not in ended.stderr and "Exception" not in ended.stderr


def test_a_result_that_cannot_be_printed_is_an_error(run: list[object], store: Store) -> None:
    ended = shell('"$@" >/dev/full', *run, "--json")
    assert ended.returncode == 2
    assert "No space left" in ended.stderr and "Traceback" not in ended.stderr
    assert [found.status for found in store.all()] == ["finished"] * 2


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["run", "--help"], ["list", "algos"]])
def test_what_is_printed_before_there_is_a_command_is_no_exception(words: list[str]) -> None:
    ended = shell('"$@" >/dev/full', *words)
    assert ended.returncode == 2
    assert ended.stderr == "Error: [Errno 28] No space left on device\n"


REMOVER = """
import os, shutil
from pathlib import Path
from pfl_bench.engine.algorithm import Algorithm

class Remover(Algorithm):
    title, summary, citation, scored_model = "Remover", "Removes.", "none", "the global model"

    def train(self, client, received):
        store = Path(os.environ["PFL_BENCH_RESULTS"])
        if client.round == AT and store.exists():
            DO
        super().train(client, received)
"""


@pytest.mark.parametrize("at", [2, 3])
@pytest.mark.parametrize(
    "do", ["shutil.rmtree(store, ignore_errors=True)", "store.rename(store.with_name('moved'))"]
)
def test_a_results_folder_removed_or_moved_under_a_run_is_not_a_success(
    inside: Path, at: int, do: str
) -> None:
    name = f"remover{at}{do[:5]}"
    program = REMOVER.replace("AT", str(at)).replace("DO", do)
    (inside / f"{name}.py").write_text(program, encoding="utf-8")
    ended = invoke(
        "run", "--algo", name, "--plugin", f"{name}.py", "--dataset", NAME, "--source",
        "real", "--clients", "2", "--batch-size", "8", "--rounds", "3", "--workers", "1",
    )  # fmt: skip
    assert is_refused(ended) and "removed while the run was computed" in ended.output
    assert not (inside / "results").exists()


def test_a_result_taken_away_at_the_last_moment_is_not_called_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from toy import toy_config

    from pfl_bench.store.writer import RunWriter

    with store.open(toy_config()) as writer:
        monkeypatch.setattr(RunWriter, "_settle", lambda self, has_state: shutil.rmtree(store.root))
        with pytest.raises(UserError, match="computed but is not kept"):
            writer.finish("skipped", "for the test")


# --- what is one sentence -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to …"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        ImportError("libx.so: cannot allocate memory in static TLS block"),
    ],
)
def test_memory_that_runs_out_is_one_sentence(
    inside: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("pfl_bench.engine.simulator.Simulator.prepare", none_left)
    ended = invoke(
        "run", "--algo", "fedavg", "--dataset", NAME, "--source", "real", "--clients", "2"
    )
    assert is_refused(ended) and "the memory does not suffice" in ended.output


def test_a_plotting_backend_that_does_not_exist_is_one_sentence(tmp_path: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "pfl_bench",
            "run",
            "--algo",
            "fedavg",
            "--dataset",
            "mnist",
            "--results",
            tmp_path,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": "nonsense", "PFL_BENCH_CACHE": str(tmp_path / "cache")},
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(
        "Error: matplotlib cannot be used with MPLBACKEND='nonsense'"
    )


# --- what a terminal would obey -------------------------------------------------------------------


def test_the_filter_leaves_text_alone_and_shows_what_a_terminal_would_obey() -> None:
    kept = "Größe λ=5 ± 0.1 %\tβ\n中文 🙂"
    assert printable(kept) == kept
    shown = printable(NASTY)
    assert shown.isprintable() and shown.startswith("␛]0;mine␇␛[31m")


def test_every_letter_that_is_a_control_is_shown() -> None:
    controls = "".join(map(chr, (*range(32), 0x7F, *range(0x80, 0xA0)))).replace("\n", "")
    assert printable(controls.replace("\t", "")).isprintable()


def is_clean(output: str) -> bool:
    return not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", output)


def test_no_command_lets_an_escape_of_a_stranger_through(
    inside: Path, stored: Path, tmp_path: Path
) -> None:
    root = tmp_path / f"results{NASTY}"
    shutil.copytree(stored, root)
    keys = sorted(path.name[-16:] for path in root.iterdir() if path.is_dir())
    table = inside / f"t{NASTY}.yaml"
    table.write_text(TABLE, encoding="utf-8")
    picture = inside / "set" / f"cat{NASTY}" / f"a{NASTY}.png"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"no picture")
    shutil.copytree(picture.parent, inside / "set" / "dog")
    for line in (
        ["results", "list", "--results", root],
        ["results", "show", keys[0], "--results", root],
        ["results", "show", f"{root}/{NASTY}", "--results", root],
        ["compare", *keys[:2], "--results", root],
        ["results", "verify", "--results", root],
        ["table", table, "--dry-run"],
        ["table", table, "--render-only"],
        ["data", "prepare", "mine", "--from", inside / "set", "--data-dir", inside / NASTY],
        ["data", "list", "--data-dir", inside / NASTY],
        ["run", "--algo", NASTY],
        ["run", f"--{NASTY}"],
        [NASTY],
    ):
        assert is_clean(invoke(*line).output), line


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ("caption", TABLE.replace("two methods", '"a \\e[31m b"')),
        ("about", 'about: "a \\e]0;mine\\a b"'),
    ],
)
def test_captions_and_descriptions_must_be_printable(inside: Path, part: str, text: str) -> None:
    (inside / "mine.yaml").write_text(text, encoding="utf-8")
    line = ["table"] if part == "caption" else ["run", "--profile"]
    refused = invoke(*line, "mine.yaml")
    assert is_refused(refused) and f"{part} cannot be" in refused.output


def test_a_console_filters_content_and_keeps_its_own_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rich.text import Text

    with guarded():
        assert isinstance(sys.stdout, Stream)
        console = standard_output()
        console._force_terminal, console._color_system = True, 1
        console.print(Text(f"x{NASTY}", style="bold"))
    out = capsys.readouterr().out
    assert "\x1b[1m" in out and "x␛]0;mine" in out and "\x1b]" not in out and "\x1b[31m" not in out


def test_consoles_are_made_in_one_place() -> None:
    makers = [
        path.relative_to(ROOT).as_posix()
        for folder in ("pfl_bench", "algorithms", "datasets")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"Console\(", path.read_text(encoding="utf-8"))
    ]
    assert sorted(makers) == ["pfl_bench/base/console.py", "pfl_bench/base/terminal.py"]
