"""The attack on a run: what the server sees, whom it attacks, and what is kept of it."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from observed import after_rounds
from prepared import NAME
from toy import toy_config, toy_dataset, toy_simulator

from pfl_bench.base import plot_style
from pfl_bench.base.errors import UserError
from pfl_bench.cli import main
from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.data.notes import write_note
from pfl_bench.engine.simulator import Simulator
from pfl_bench.execution.configuration import configure
from pfl_bench.execution.options import Execution
from pfl_bench.execution.runner import execute
from pfl_bench.privacy import audit
from pfl_bench.privacy.audit import attacked, victims
from pfl_bench.privacy.threat import Threat, with_attack
from pfl_bench.reporting.tables.reading import load_table, read_table
from pfl_bench.store.folder import RunBusy
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

SMALL = {"victims": 2, "batches": 2, "restarts": 1, "iterations": 3}


def configured(folder: Path, algo: str = "fedper", **chosen: Any) -> RunConfig:
    values = {"algo": algo, "dataset": NAME, "clients": 2, "rounds": 1, "batch_size": 8, "lr": 0.05}
    return configure(Profile("none", "", {}, {}, {}), {**values, **chosen}, {}, folder)


def found_by(run: StoredRun) -> list[dict[str, Any]]:
    """What an attack found, without how long it took."""
    assert run.summary is not None
    return [{**victim, "seconds": 0} for victim in run.summary["attack"]["victims"]]


@pytest.mark.parametrize("method", ["dlg", "inverting"])
def test_a_method_that_gives_nothing_to_attack_says_so(method: str) -> None:
    simulator, threat = after_rounds("local"), Threat(**SMALL, method=method)
    with pytest.raises(UserError, match="local cannot be attacked: it sends no values"):
        list(audit._results(simulator, threat, victims(simulator, threat)))


def test_a_step_too_small_for_the_message_to_tell_leaves_the_attacker_where_it_began() -> None:
    simulator, threat = after_rounds("fedavg", lr=1e-12), Threat(**SMALL)
    (found, *_) = audit._results(simulator, threat, victims(simulator, threat)[:1])
    assert found["mismatch"] == 1
    assert found["psnr"] == pytest.approx(found["psnr_noise"], abs=3)


def test_the_mean_image_is_that_of_all_training_images() -> None:
    simulator, dataset = toy_simulator(toy_config()), toy_dataset()
    rows = np.concatenate([shard.train.numpy() for shard in simulator.shards])
    expected = dataset.x[rows].transpose(0, 3, 1, 2).mean(0) / 255
    assert np.allclose(audit.mean_image(simulator).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("threat", [{"method": "inverting"}, {"personal": "fitted"}])
def test_other_attacks_come_closer_than_their_start(threat: dict[str, Any]) -> None:
    simulator = after_rounds("fedper")
    attack = Threat(**{**SMALL, "iterations": 40, **threat})
    (found, *_) = audit._results(simulator, attack, victims(simulator, attack)[:1])
    one = replace(attack, iterations=1)
    (start, *_) = audit._results(after_rounds("fedper"), one, victims(simulator, attack)[:1])
    assert found["mismatch"] < start["mismatch"]


# --- victims --------------------------------------------------------------------------------------


def test_the_victims_are_the_same_for_every_method() -> None:
    threat = Threat(victims=2, batches=3, batch_size=2)
    plans = [victims(toy_simulator(toy_config(algo)), threat) for algo in ("fedavg", "fedcp")]
    assert plans[0] == plans[1]
    assert len(plans[0]) == 6


def test_no_image_of_a_client_is_attacked_twice() -> None:
    simulator = toy_simulator(toy_config())
    plan = victims(simulator, Threat(victims=4, batches=5, batch_size=2))
    for client in range(4):
        positions = [p for victim in plan if victim.client == client for p in victim.positions]
        assert len(positions) == len(set(positions)) == 10
        assert max(positions) < simulator.shards[client].samples


def test_more_victims_than_there_are_means_all() -> None:
    plan = victims(toy_simulator(toy_config()), Threat(victims=100, batches=1))
    assert [victim.client for victim in plan] == [0, 1, 2, 3]


# --- stored ---------------------------------------------------------------------------------------


def test_an_attack_is_stored_and_not_repeated(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, threat = configured(folder), Threat(**SMALL)
    first = attacked(config, store, Execution(folder), threat)
    assert len(found_by(first)) == 4
    monkeypatch.setattr(audit, "_attack", lambda *_: pytest.fail("attacked again"))
    assert attacked(config, store, Execution(folder), threat) == first


def test_an_attack_does_not_depend_on_the_number_of_workers(folder: Path, tmp_path: Path) -> None:
    config, threat = configured(folder, "fedcp"), Threat(**SMALL)
    runs = [
        attacked(config, Store(tmp_path / str(n)), Execution(folder, workers=n), threat)
        for n in (1, 3)
    ]
    assert found_by(runs[0]) == found_by(runs[1])


def test_an_attack_cut_off_continues_with_the_next_victim(
    folder: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, threat = configured(folder), Threat(**SMALL)
    whole = attacked(config, Store(tmp_path / "whole"), Execution(folder), threat)
    begun: list[int] = []
    attack = audit._attack

    def cut(simulator: Simulator, threat: Threat, victim: audit.Victim) -> dict[str, Any]:
        begun.append(victim.client)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return attack(simulator, threat, victim)

    monkeypatch.setattr(audit, "_attack", cut)
    with pytest.raises(KeyboardInterrupt):
        attacked(config, store, Execution(folder, workers=1), threat)
    run = store.find(config)
    assert run is not None and with_attack(run, threat) is None
    assert len(threat.begun(run)) == 2
    before = len(begun)
    continued = attacked(config, store, Execution(folder, workers=1), threat)
    assert begun[before:] == [victim["client"] for victim in found_by(whole)[2:]]
    assert found_by(continued) == found_by(whole)


def test_a_run_under_attack_is_left_to_its_attacker(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, threat = configured(folder), Threat(**SMALL)
    attack = audit._attack

    def beside(simulator: Simulator, threat: Threat, victim: audit.Victim) -> dict[str, Any]:
        with pytest.raises(RunBusy, match="is being computed by process"):
            attacked(config, Store(store.root), Execution(folder), threat)
        return attack(simulator, threat, victim)

    monkeypatch.setattr(audit, "_attack", beside)
    assert len(found_by(attacked(config, store, Execution(folder, workers=1), threat))) == 4


def test_a_run_computed_again_to_the_same_bits_keeps_its_attack(folder: Path, store: Store) -> None:
    config, threat = configured(folder), Threat(**SMALL)
    first = attacked(config, store, Execution(folder), threat)
    again = execute(config, store, Execution(folder, fresh=True))
    assert again.end.records_sha256 != first.end.records_sha256, "it took another time"
    kept = with_attack(again, threat)
    assert kept is not None and found_by(kept) == found_by(first)


def test_a_run_computed_again_to_other_bits_has_yet_to_be_attacked(
    folder: Path, store: Store, tmp_path: Path
) -> None:
    config, threat = configured(folder), Threat(**SMALL)
    attacked(config, store, Execution(folder), threat)
    other = execute(replace(config, lr=0.06), Store(tmp_path / "other"), Execution(folder))
    with store.open(config) as writer:
        writer.discard()
        writer.append(other.records()[0])
        again = writer.finish("finished")
    assert with_attack(again, threat) is None


def test_an_attack_on_the_beginning_of_a_longer_run_is_not_one_on_its_end(
    folder: Path, store: Store
) -> None:
    threat, short, long = (
        Threat(**SMALL),
        configured(folder, rounds=1),
        configured(folder, rounds=3),
    )
    execute(long, store, Execution(folder))
    early = attacked(short, store, Execution(folder), threat)
    stored = store.find(long)
    assert stored is not None and with_attack(stored, threat) is None
    late = attacked(long, store, Execution(folder), threat)
    assert found_by(early) != found_by(late)
    stored = store.find(short)
    assert stored is not None and with_attack(stored, threat) == early


def test_damage_of_what_was_found_is_noticed(folder: Path, store: Store) -> None:
    config, threat = configured(folder), Threat(**SMALL)
    run = attacked(config, store, Execution(folder), threat)
    (path,) = run.path.glob(f"{threat.name}*.json")
    path.write_text(path.read_text().replace('"planned": 4', '"planned": 5'))
    stored = store.find(config)
    assert stored is not None and with_attack(stored, threat) is None


@pytest.mark.parametrize("victims", [None, 3, [3], [{}], [{"psnr": "high"}] * 4])
def test_a_sealed_document_of_another_kind_counts_as_no_attack(
    folder: Path, store: Store, victims: Any
) -> None:
    threat = Threat(**SMALL)
    run = execute(configured(folder), store, Execution(folder))
    run.attach(threat.name, {"planned": 4, "victims": victims})
    assert with_attack(run, threat) is None
    assert threat.begun(run) == []


def test_two_attacks_on_one_run_are_kept_side_by_side(folder: Path, store: Store) -> None:
    config, one = configured(folder), Threat(**SMALL)
    other = replace(one, target="update")
    runs = [attacked(config, store, Execution(folder), threat) for threat in (one, other)]
    assert found_by(runs[0]) != found_by(runs[1])
    stored = store.find(config)
    assert stored is not None and with_attack(stored, one) == runs[0]


def test_stored_images_have_the_stored_psnr(folder: Path, store: Store) -> None:
    run = attacked(configured(folder, "fedavg"), store, Execution(folder), Threat(**SMALL))
    dataset = toy_dataset(samples=64)
    for victim in found_by(run):
        original, recovered = (
            np.frombuffer(base64.b64decode(victim[name]), np.uint8).reshape(victim["shape"]) / 255.0
            for name in ("original", "recovered")
        )
        assert (dataset.x.transpose(0, 3, 1, 2) / 255.0 == original).all((1, 2, 3)).any()
        error = ((original - recovered) ** 2).mean((1, 2, 3))
        # Recovered images are stored in bytes.
        assert victim["psnr"] == pytest.approx((-10 * np.log10(error)).tolist(), abs=0.05)


def test_a_server_that_knows_more_explains_what_it_sees_better(folder: Path, store: Store) -> None:
    left = {}
    for personal in ("inferred", "known"):
        threat = Threat(**{**SMALL, "iterations": 60, "personal": personal})
        found = found_by(attacked(configured(folder), store, Execution(folder), threat))
        left[personal] = np.median([victim["mismatch"] for victim in found])
    assert left["known"] < left["inferred"]


# --- in a table -----------------------------------------------------------------------------------

SPEC = """
caption: What an attack recovers.
metric: psnr
compared: columns
attack: {victims: 1, batches: 2, restarts: 1, iterations: 2}
run: {dataset: toy, source: real, clients: 2, rounds: 1, batch_size: 8, lr: 0.05}
columns:
  - {name: FedAvg, run: {algo: fedavg}}
  - {name: FedPer, run: {algo: fedper}}
rows:
  - {name: PSNR, published: [7.3, 7.94]}
"""


def table(tmp_path: Path, folder: Path, *arguments: str, spec: str = SPEC) -> Any:
    path = tmp_path / "leak.yaml"
    path.write_text(spec)
    fixed = ("--seeds", "1", "--results", str(tmp_path / "results"), "--data-dir", str(folder))
    return CliRunner().invoke(main, ["table", str(path), *fixed, *arguments])


def test_the_picture_of_an_attack_tells_of_data_that_are_not_as_published(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    monkeypatch.setattr(
        plot_style, "save", lambda figure, *_, **__: titles.append(figure.get_suptitle())
    )
    noted = Path(shutil.copytree(folder, tmp_path / "noted"))
    write_note("toy", noted, "toy copy")
    assert table(tmp_path, noted, "--out", str(tmp_path / "out")).exit_code == 0
    began = "toy (toy copy), small CNN in the place of the 4-layer CNN: images of clients"
    assert any(title.startswith(began) for title in titles)


def test_a_table_of_an_attack_is_run_rendered_drawn_and_kept(tmp_path: Path, folder: Path) -> None:
    out = tmp_path / "out"
    first = table(tmp_path, folder, "--out", str(out))
    assert first.exit_code == 0, first.output
    assert "Floor:" in first.output and "DLG by a semi-honest server" in first.output
    assert sorted(path.name for path in out.iterdir()) == [
        "leak.csv", "leak.md", "leak.png", "leak.svg", "leak.tex", "leak_images.png",
        "leak_images.svg",
    ]  # fmt: skip
    stored = list(Store(tmp_path / "results").all())
    means = [np.mean([p for v in found_by(run) for p in v["psnr"]]) for run in _attacked(stored)]
    assert all(f"{mean:.2f} ± " in first.output for mean in means)
    again = table(tmp_path, folder, "--dry-run")
    assert "missing:    0 cells, 0 runs" in again.output


def _attacked(runs: Sequence[StoredRun]) -> list[StoredRun]:
    threat = Threat.of({"victims": 1, "batches": 2, "restarts": 1, "iterations": 2})
    found = [with_attack(run, threat) for run in runs]
    return [run for run in found if run is not None]


def test_a_trained_run_that_was_not_attacked_is_missing(tmp_path: Path, folder: Path) -> None:
    assert table(tmp_path, folder, "--columns", "FedAvg").exit_code == 0
    other = table(tmp_path, folder, "--attack", "target=update", "--dry-run")
    assert "missing:    2 cells, 2 runs" in other.output
    assert "missing:    1 cells, 1 runs" in table(tmp_path, folder, "--dry-run").output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--attack", "targt=update"], "did you mean 'target'?"),
        (["--attack", "target=model"], "allowed: one of batch, update"),
        (["--attack", "victims"], "--attack cannot be 'victims'; allowed: NAME=VALUE"),
        (["--attack", "batch_size=0"], "the attack cannot take batch_size='0'"),
    ],
)
def test_a_mistake_in_the_attack_is_one_sentence(
    tmp_path: Path, folder: Path, arguments: list[str], sentence: str
) -> None:
    result = table(tmp_path, folder, *arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_knob_of_an_attack_without_an_attack_is_refused(tmp_path: Path, folder: Path) -> None:
    plain = SPEC.replace("metric: psnr", "metric: accuracy")
    assert (
        "'attack' belongs to tables with 'metric: psnr'"
        in table(tmp_path, folder, spec=plain).output
    )
    without = "\n".join(line for line in plain.splitlines() if not line.startswith("attack"))
    result = table(tmp_path, folder, "--attack", "victims=1", spec=without)
    assert result.exit_code == 2 and "shows no attack" in result.output


def test_texts_are_refused_before_anything_trains(tmp_path: Path) -> None:
    spec = SPEC.replace("dataset: toy, source: real", "dataset: agnews").replace(", lr: 0.05", "")
    path = tmp_path / "leak.yaml"
    path.write_text(spec)
    results = tmp_path / "results"
    result = CliRunner().invoke(main, ["table", str(path), "--results", str(results)])
    assert result.exit_code == 2
    assert "recovers images, and the model 'fasttext' reads texts" in result.output
    assert not results.exists()


def test_the_paper_s_table_says_what_is_attacked() -> None:
    spec = load_table("privacy")
    threats = {place: cell.threat for place, cell in spec.cells.items()}
    for (row, column), threat in threats.items():
        assert threat is not None
        assert threat.target == "batch" and threat.batch_size == 1 and threat.victims > 1
        assert threat.method == ("dlg" if row == "PSNR" else "inverting")
        assert threat.personal == ("guessed" if "guessed" in column else "inferred")
    assert len(spec.columns) == 13


TWO_ATTACKERS = SPEC.replace(
    "  - {name: FedPer, run: {algo: fedper}}\n",
    "  - {name: weaker, run: {algo: fedavg}, attack: {iterations: 5}}\n",
).replace("  - {name: PSNR, published: [7.3, 7.94]}", "  - {name: one}\n"
          "  - {name: two, attack: {method: inverting}}")  # fmt: skip


def test_a_row_and_a_column_have_attacks_of_their_own_on_one_run(
    tmp_path: Path, folder: Path
) -> None:
    assert (
        "missing:    4 cells, 1 runs"
        in table(tmp_path, folder, "--dry-run", spec=TWO_ATTACKERS).output
    )
    made = table(tmp_path, folder, "--out", str(tmp_path / "out"), spec=TWO_ATTACKERS)
    assert made.exit_code == 0, made.output
    (run,) = Store(tmp_path / "results").all()
    assert len(list(run.path.glob("attack-*.json"))) == 4
    rows = (tmp_path / "out" / "leak.csv").read_text().splitlines()[1:]
    assert len({row.split(",")[5] for row in rows}) == 4
    caption = (tmp_path / "out" / "leak.md").read_text()
    assert "one: DLG by" in caption and "two: Inverting gradients by" in caption
    assert "weaker with iterations=5" in caption
    again = table(tmp_path, folder, "--dry-run", spec=TWO_ATTACKERS)
    assert "missing:    0 cells, 0 runs" in again.output


def test_a_knob_on_the_command_line_holds_for_every_attack(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "leak.yaml"
    path.write_text(TWO_ATTACKERS)
    spec = read_table(path).attacked({"victims": "3"})
    threats = [cell.threat for cell in spec.cells.values() if cell.threat is not None]
    assert {threat.victims for threat in threats} == {3}
    assert len(set(threats)) == 4


@pytest.mark.parametrize(("score", "unit"), [("ssim", "SSIM"), ("published_psnr", "dB")])
def test_the_same_attacks_can_be_scored_by_another_similarity(
    tmp_path: Path, folder: Path, score: str, unit: str
) -> None:
    first = table(tmp_path, folder)
    other = table(tmp_path, folder, "--score", score)
    assert other.exit_code == 0, other.output
    stored = list(Store(tmp_path / "results").all())
    means = [np.mean([p for v in found_by(run) for p in v[score]]) for run in _attacked(stored)]
    assert all(f"{mean:.2f} ± " in other.output for mean in means)
    assert unit in other.output and first.output != other.output


def test_a_score_that_no_attack_has_names_those_that_there_are(
    tmp_path: Path, folder: Path
) -> None:
    result = table(tmp_path, folder, "--score", "sim")
    assert result.exit_code == 2 and "did you mean 'ssim'?" in result.output


def test_an_unknown_knob_in_a_file_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "leak.yaml"
    path.write_text(SPEC.replace("victims: 1", "victms: 1"))
    with pytest.raises(UserError, match=r"leak\.yaml.*did you mean 'victims'"):
        read_table(path)
