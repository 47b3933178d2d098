"""`pfl-bench figure` as a user meets it: what is run, what is taken, what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from PIL import Image
from prepared import NAME, prepare_toy
from toy import toy_config

from pfl_bench.cli import main
from pfl_bench.cli.figure import figure
from pfl_bench.store.store import Store

OF_RUNS = ("distribution", "convergence", "curves", "clients", "gradcam", "policy")
OF_TABLES = ("ranks", "profiles")
FIGURES = (*OF_RUNS[:4], *OF_TABLES, *OF_RUNS[4:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_toy(tmp_path_factory.mktemp("data"), samples=80)


class Bench:
    """The command with the toy problem, a store and a folder for pictures of the test's own."""

    def __init__(self, data: Path, place: Path):
        self.store, self.out = Store(place / "results"), place / "figures"
        self._data = ("--dataset", NAME, "--data-dir", str(data), "--setting", "iid",
                      "--clients", "2")  # fmt: skip
        self._run = ("--results", str(self.store.root), "--rounds", "2", "--lr", "0.05")

    def invoke(self, name: str, *more: str, out: bool = True) -> Result:
        flags = self._data if name == "distribution" else (*self._data, *self._run)
        place = ("--out", str(self.out)) if out else ()
        return CliRunner().invoke(main, ("figure", name, *flags, *place, *more))

    def draw(self, name: str, *more: str) -> Result:
        result = self.invoke(name, *more)
        assert result.exit_code == 0, result.output
        return result

    def run(self, *more: str) -> None:
        flags = (*self._data, *self._run, "--quiet", *more)
        named = () if "--algo" in flags else ("--algo", "fedavg")
        result = CliRunner().invoke(main, ("run", *named, *flags))
        assert result.exit_code == 0, result.output

    def refused(self, name: str, *more: str, out: bool = True) -> str:
        result = self.invoke(name, *more, out=out)
        assert result.exit_code == 2, result.output
        assert result.stderr.count("\n") == 1
        assert not list(self.store.all()) and not self.out.exists()
        return result.stderr

    def runs(self) -> list[str]:
        return sorted(run.path.name for run in self.store.all())


@pytest.fixture
def bench(folder: Path, tmp_path: Path) -> Bench:
    return Bench(folder, tmp_path)


SMALL: dict[str, tuple[str, ...]] = {
    "curves": ("--algos", "fedavg,local", "--seeds", "2"),
    "clients": ("--algos", "fedavg,local", "--seeds", "1"),
}


@pytest.mark.parametrize("name", OF_RUNS)
def test_a_figure_runs_what_is_missing_and_then_draws_from_what_is_stored(
    bench: Bench, name: str
) -> None:
    first = bench.draw(name, *SMALL.get(name, ()))
    pictures = {path.name: path.read_bytes() for path in bench.out.iterdir()}
    runs = bench.runs()
    assert {Path(p).suffix for p in pictures} == {".png", ".svg"}
    assert ("round" in first.stderr) == bool(runs) == (name != "distribution")
    again = bench.draw(name, *SMALL.get(name, ()))
    assert again.stdout == first.stdout
    assert "round" not in again.stderr
    assert {path.name: path.read_bytes() for path in bench.out.iterdir()} == pictures
    assert bench.runs() == runs


def test_only_what_is_missing_is_run(bench: Bench) -> None:
    bench.run("--algo", "fedavg")
    result = bench.draw("curves", *SMALL["curves"])
    assert "3 of 4 runs are not stored and run now" in result.stderr
    assert len(bench.runs()) == 4


def test_an_empty_profile_or_number_of_seeds_in_a_file_leaves_them_to_the_figure(
    bench: Bench, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text("profile:\nseeds:\n")
    result = bench.draw("clients", "--algos", "fedavg", "--config", str(tmp_path / "mine.yaml"))
    assert "3 of 3 runs are not stored" in result.stderr


def test_a_run_that_recorded_more_serves_too(bench: Bench) -> None:
    bench.run("--algo", "fedcp", "--record", "convergence,pir,policy")
    for name in ("convergence", "policy"):
        assert "not stored" not in bench.draw(name).stderr
    bench.draw("clients", "--algos", "fedcp", "--seeds", "1")
    assert len(bench.runs()) == 1


@pytest.mark.parametrize("name", ["policy", "gradcam", "convergence"])
def test_a_run_whose_model_is_kept_is_not_trained_again(bench: Bench, name: str) -> None:
    bench.run("--algo", "fedcp", "--keep-model")
    before = bench.runs()
    told = bench.draw(name).stderr
    assert bench.runs() == before
    assert ("is not trained again" in told) == (name != "gradcam")
    assert "round" not in told


def test_a_run_that_recorded_more_does_not_tell_the_time(bench: Bench) -> None:
    bench.run("--algo", "fedavg", "--record", "convergence")
    result = bench.draw("curves", "--x", "seconds", "--algos", "fedavg", "--seeds", "1")
    assert "1 of 1 runs are not stored" in result.stderr


def test_a_hyper_parameter_goes_to_the_methods_that_have_it(bench: Bench) -> None:
    bench.draw("clients", "--algos", "fedavg,fedprox", "--seeds", "1", "--set", "mu=0.5")
    hyper = {run.config["algo"]: run.config["hyper"] for run in bench.store.all()}
    assert hyper == {"fedavg": {}, "fedprox": {"mu": 0.5}}


def test_methods_that_cannot_run_are_told_and_the_others_drawn(bench: Bench) -> None:
    flags = ("--algos", "fedavg,perfedavg", "--seeds", "1", "--batch-size", "25")
    bench.draw("clients", *flags)
    assert {run.status for run in bench.store.all()} == {"finished", "skipped"}


def test_stored_results_are_drawn_without_the_data_they_come_from(tmp_path: Path) -> None:
    """The repository's own, of its published column."""
    root, nothing = Path(__file__).parents[2], ("--data-dir", str(tmp_path / "nothing"))
    length = ("--rounds", "300", "--patience", "40")
    cell = ("--profile", "paper", "--dataset", "cifar100", "--clients", "10", "--of", "50", *length)
    flags = (*cell, "--algos", "local,fedper", "--seeds", "1")
    store = ("--results", str(root / "results/paper.zip"), "--out", str(tmp_path), *nothing)
    result = CliRunner().invoke(main, ("figure", "curves", *flags, *store, "--format", "png"))
    assert result.exit_code == 0, result.output
    assert [path.suffix for path in tmp_path.glob("curves-*")] == [".png"]
    missing = CliRunner().invoke(main, ("figure", "curves", *flags, *store, "--seeds", "9"))
    assert missing.exit_code == 2
    assert "Cifar100 is not prepared" in missing.output


def test_results_on_a_stand_in_drawn_elsewhere_do_not_hinder_the_one_drawn_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = toy_config(dataset="mnist", source="standin", data_fingerprint="theirs")
    with Store(tmp_path / "results").open(theirs) as writer:
        writer.finish("skipped", "for a test")
    small = ("--dataset", "mnist", "--fraction", "0.05")
    run = ("--algos", "fedavg", "--rounds", "1", "--seeds", "1", "--quiet", "--format", "png")
    for command in (("data", "partition"), ("figure", "distribution"), ("figure", "curves", *run)):
        result = CliRunner().invoke(main, (*command, *small))
        assert result.exit_code == 0, result.output


def test_one_file_can_be_named_and_has_the_width_of_a_page(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "mine" / "who.png"
    result = bench.invoke("distribution", "--out", str(path), "--width", "page", out=False)
    assert result.stdout == f"wrote {path}\n"
    with Image.open(path) as image:
        assert image.width == 2100


def test_formats_can_be_chosen(bench: Bench) -> None:
    bench.draw("distribution", "--format", "pdf, PNG")
    assert {path.suffix for path in bench.out.iterdir()} == {".pdf", ".png"}


def test_figure_list_says_what_each_shows() -> None:
    lines = CliRunner().invoke(main, ("figure", "list")).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(FIGURES)
    assert set(FIGURES) == set(figure.list_commands(click.Context(figure))) - {"list"}


def test_the_page_has_a_valid_example_of_every_figure() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "figures.md"
    examples = re.findall(r"\| `pfl-bench figure (\w+) (.+)` \|", page.read_text(encoding="utf-8"))
    assert [name for name, _ in examples] == list(FIGURES)
    for name, flags in examples:
        command = figure.get_command(click.Context(figure), name)
        assert command is not None
        command.make_context(name, flags.split())


def test_a_misspelt_figure_is_told_the_nearest() -> None:
    result = CliRunner().invoke(main, ("figure", "curve"))
    assert result.exit_code == 2
    assert "unknown figure 'curve'; did you mean 'curves'?" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("curves", "--algos", "fedavg,fedpre"), "unknown algorithm 'fedpre'; did you mean"),
        (("curves", "--algos", ","), "--algos cannot be ','"),
        (("curves", "--set", "muu=1"), "unknown hyper-parameter of fedavg, fedper, fedcp 'muu'"),
        (("curves", "--seeds", "0"), "seeds cannot be '0'"),
        (("curves", "--paper", "--dataset", "cifar10", "--source", "standin"),
         "--paper says nothing about a stand-in"),
        (("policy", "--algo", "fedavg"), "'fedavg' does not record; allowed: fedcp"),
        (("policy", "--client", "2"), "client cannot be 2; allowed: 0 to 1"),
        (("gradcam", "--algo", "fedper"), "compares the global and the personalized head"),
        (("gradcam", "--layer", "conv9"), "unknown layer 'conv9'; did you mean 'conv"),
        (("gradcam", "--layer", "fc"), "the layer 'fc' has none"),
        (("curves", "--algos", ""), "--algos cannot be ''"),
        (("distribution", "--beta", "0.1"), "beta 0.1 belongs to the practical setting"),
        (("distribution", "--format", "jpg"), "unknown picture format 'jpg'"),
    ],
)  # fmt: skip
def test_mistakes_are_told_in_a_sentence_before_anything_runs(
    bench: Bench, arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in bench.refused(*arguments)


@pytest.mark.parametrize(
    ("out", "formats", "sentence"),
    [
        ("a.jpg", (), "unknown picture format 'jpg'; did you mean 'png'? allowed: pdf, png"),
        ("a.png", ("--format", "svg"), "--format svg contradicts --out"),
    ],
)
def test_a_file_of_another_format_is_refused(
    bench: Bench, tmp_path: Path, out: str, formats: tuple[str, ...], sentence: str
) -> None:
    place = ("--out", str(tmp_path / out))
    assert sentence in bench.refused("distribution", *place, *formats, out=False)


def test_an_interruption_is_told_and_the_same_command_continues(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pfl_bench.store.writer import RunWriter

    append = RunWriter.append

    def interrupted(self: RunWriter, record: object) -> None:
        append(self, record)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    flags = ("--algos", "fedavg", "--seeds", "1")
    with monkeypatch.context() as patch:
        patch.setattr(RunWriter, "append", interrupted)
        result = bench.invoke("curves", *flags)
    assert result.exit_code == 130
    assert "The same command continues" in result.stderr
    assert "continues after round 1" in bench.draw("curves", *flags).stderr


def test_a_profile_may_name_the_first_seed_for_a_dataset(folder: Path, tmp_path: Path) -> None:
    bench, profile = Bench(folder, tmp_path), tmp_path / "mine.yaml"
    profile.write_text(f"datasets: {{{NAME}: {{seed: 7}}}}\n")
    bench.draw("curves", "--algos", "fedavg", "--seeds", "2", "--profile", str(profile))
    assert sorted(run.config["seed"] for run in bench.store.all()) == [7, 8]


TABLE = """
caption: Two problems.
run: {{dataset: {data}, setting: iid, lr: 0.05, rounds: 2}}
columns:
  - {{name: two, run: {{clients: 2}}}}
  - {{name: three, run: {{clients: 3}}}}
rows:
  - {{name: FedAvg, run: {{algo: fedavg}}}}
  - {{name: Local, run: {{algo: local}}}}
"""


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_figure_of_a_table_draws_what_is_stored_and_runs_nothing(
    name: str, folder: Path, tmp_path: Path
) -> None:
    table, out = tmp_path / "mine.yaml", tmp_path / "out"
    table.write_text(TABLE.format(data=NAME))
    store = ("--seeds", "1", "--results", str(tmp_path / "results"), "--data-dir", str(folder))
    asked = ("figure", name, "--table", str(table), *store, "--out", str(out))
    refused = CliRunner().invoke(main, asked)
    assert refused.exit_code == 2
    assert "mine has no" in refused.stderr
    assert not (tmp_path / "results").exists()
    run = CliRunner().invoke(main, ("table", str(table), *store))
    assert run.exit_code == 0, run.output
    drawn = CliRunner().invoke(main, asked)
    assert drawn.exit_code == 0, drawn.output
    assert {path.name for path in out.iterdir()} == {
        f"{name}-mine-lite.png",
        f"{name}-mine-lite.svg",
    }


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_profile_that_does_not_rank_has_no_figure_of_ranks(name: str, tmp_path: Path) -> None:
    profile = tmp_path / "short.yaml"
    profile.write_text("ranks: false\nrun: {source: standin, rounds: 1}\n")
    result = CliRunner().invoke(
        main, ("figure", name, "--profile", str(profile), "--results", str(tmp_path / "none"))
    )
    assert result.exit_code == 2
    assert "does not tell which method is better" in result.stderr
