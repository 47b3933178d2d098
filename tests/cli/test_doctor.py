"""`pfl-bench doctor` as a user reads it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pfl_bench.cli import main
from pfl_bench.execution import checkup
from pfl_bench.execution.checkup import Check, Pacing, WideLayer


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was looked at already."""
    monkeypatch.setattr(checkup, "matrix_rates", lambda cores: (50e9, 50e9 * cores))
    monkeypatch.setattr(checkup, "pacing", lambda *_: Pacing(0.006, 1e11))
    monkeypatch.setattr(checkup, "wide_layer", lambda: WideLayer("x Wᵀ", 2e-4, 5e-4))
    monkeypatch.setattr(checkup, "checks", lambda folder: [Check("runs repeat", True)])


def _doctor(tmp_path: Path) -> Result:
    folders = ("--results", str(tmp_path / "results"), "--data-dir", str(tmp_path / "data"))
    return CliRunner().invoke(main, ("doctor", "--device", "cpu", *folders))


@pytest.mark.usefixtures("healthy")
def test_a_sound_machine_gets_a_verdict_and_the_time_of_every_profile(tmp_path: Path) -> None:
    said = _doctor(tmp_path)
    assert said.exit_code == 0, said.output
    lines = said.stdout.splitlines()
    assert lines[-1] == "Verdict: this machine can be trusted with a long table."
    for word in ("versions", "machine", "cores", "the CNN", "disk", "data", "device", "yes"):
        assert any(line.startswith(f"{word:<10}  ") for line in lines)
    times = lines[lines.index(next(line for line in lines if "table main" in line)) + 1 : -1]
    assert [line.split()[0] for line in times] == ["lite", "paper", "quick"]
    assert all("about " in line and " runs" in line for line in times)
    assert not (tmp_path / "results").exists()


@pytest.mark.usefixtures("healthy")
def test_what_does_not_hold_is_the_verdict_and_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [Check("runs repeat", True), Check("kills are survived", False, "it left nothing")]
    monkeypatch.setattr(checkup, "checks", lambda folder: found)
    said = _doctor(tmp_path)
    assert said.exit_code == 1
    assert "NO          kills are survived (it left nothing)" in said.stdout
    verdict = "Verdict: not to be trusted; it does not hold that kills are survived."
    assert said.stdout.splitlines()[-1] == verdict


@pytest.mark.usefixtures("healthy")
def test_a_slow_order_of_the_wide_layer_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "does not fit this processor" not in _doctor(tmp_path).stdout
    monkeypatch.setattr(checkup, "wide_layer", lambda: WideLayer("x Wᵀ", 5e-4, 2e-4))
    said = _doctor(tmp_path).stdout
    assert "wide layer  taken as x Wᵀ in 0.50 ms; the other order takes 0.20" in said
    assert "a rule that does not fit this processor" in said


@pytest.mark.usefixtures("healthy")
def test_a_full_disk_is_told_before_the_table_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["pfl_bench.cli.doctor"], "LEAST_DISK", 1e30)
    said = _doctor(tmp_path)
    assert said.exit_code == 1 and "make room on the disk" in said.stdout
