"""The report: what it tells agrees with the store, and nothing in it is taken for markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st
from madestore import (
    FINGERPRINT,
    TEST_SAMPLES,
    keep,
    keep_table,
    made_config,
    made_profile,
    made_record,
    made_table,
)
from smalltables import loaded_plugins

from pfl_bench.base.errors import UserError
from pfl_bench.base.version import install_command
from pfl_bench.cli import main
from pfl_bench.config.command_line import requirements, run_command
from pfl_bench.config.options import Profile
from pfl_bench.config.run_config import RunConfig
from pfl_bench.data import registry as data
from pfl_bench.execution import many
from pfl_bench.execution.request import Request
from pfl_bench.reporting.report import page, runs
from pfl_bench.reporting.report.page import render_page, write_report
from pfl_bench.reporting.report.runs import Gathered, gather
from pfl_bench.reporting.report.tables import ReadResults, tables
from pfl_bench.reporting.tables.spec import TableSpec
from pfl_bench.store.records import RoundRecord, from_json, seal
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "quick.zip"
GAINS = {"FedAvg": 1, "FedCP": 20, "Ditto": 10}
PUBLISHED = ("81.25", "98.12", "90.38", "61.75", "90.50")
NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&'\"{{ 7*7 }}"


@pytest.fixture
def spec(tmp_path: Path) -> TableSpec:
    return made_table(tmp_path)


@pytest.fixture
def standin(tmp_path: Path) -> Profile:
    return made_profile(tmp_path, "standin")


@pytest.fixture
def real(tmp_path: Path) -> Profile:
    return made_profile(tmp_path, "real")


# --- the page, as a browser takes it apart --------------------------------------------------------


class Page(HTMLParser):
    """What a parser of HTML finds: tags with their attributes, and the content of scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._is_script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._is_script = tag == "script"
        if self._is_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False

    def handle_data(self, data: str) -> None:
        if self._is_script:
            self.scripts[-1] += data
        else:
            self.text += data

    def unpacked(self, name: str) -> str:
        """What the script of the page finds in one of its compressed parts."""
        ids = [attributes.get("id") for tag, attributes in self.tags if tag == "script"]
        text = self.scripts[ids.index(f"packed-{name}")]
        return zlib.decompress(base64.b64decode(text)).decode()

    @property
    def island(self) -> Any:
        return json.loads(self.unpacked("data"))

    @property
    def policy(self) -> str:
        return next(
            str(attributes["content"])
            for tag, attributes in self.tags
            if attributes.get("http-equiv") == "Content-Security-Policy"
        )


def page_of(store: Store, *rest: Any) -> Page:
    gathered = gather(store.all())
    return Page(render_page(gathered, rest[0] if rest else [], str(store.root)))


# --- the command that reproduces a run ------------------------------------------------------------


class Captured(UserError):
    def __init__(self, config: RunConfig):
        super().__init__("captured")
        self.config = config


def configured_by(command: str, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The configuration that the command line makes of a command, before anything is computed."""

    def capture(requests: Sequence[Request], *_: object) -> None:
        raise Captured(requests[0].config)

    monkeypatch.setattr(many, "run_all", capture)
    program, *words = shlex.split(command)
    assert program == "pfl-bench"
    with pytest.raises(Captured) as captured:
        main.commands[words[0]].main(words[1:], standalone_mode=False)
    return captured.value.config


@pytest.mark.parametrize(
    ("chosen", "hyper"),
    [
        ({"algo": "fedavg"}, {}),
        ({"algo": "fedcp", "beta": 0.3, "fraction": 0.123456789012345}, {"cpn": False}),
        ({"algo": "fedcp"}, {"lambda": 1e-7, "norm": "group", "gfm": False}),
        ({"algo": "ditto", "setting": "pathological", "classes_per_client": 3}, {"mu": 0.25}),
        ({"algo": "pfedme", "setting": "iid", "lr": 1e-7, "patience": 3}, {}),
        ({"algo": "fedrep", "clients": 10, "of": 50, "partition_seed": 7, "seed": 12}, {}),
        ({"algo": "fedavg", "joining_ratio": "0.00001-0.1"}, {}),
        ({"algo": "fedavg", "joining_ratio": "0.5", "eval_every": 5, "bn_stats": "average"}, {}),
        ({"algo": "fedcp", "record": "convergence", "model": "resnet18", "local_epochs": 5}, {}),
        ({"algo": "fedavg", "dataset": "cifar100", "model": "cnn_small", "image_size": 16}, {}),
        ({"algo": "fedavg", "dataset": "agnews", "batch_size": 32, "rounds": 17}, {}),
    ],
)
def test_the_command_of_a_run_gives_its_key(
    chosen: dict[str, Any],
    hyper: dict[str, Any],
    standin: Profile,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(data, "fingerprint", lambda *_: FINGERPRINT)
    config = made_config(standin, hyper, **chosen)
    command = run_command(config)
    assert command is not None
    assert configured_by(command, monkeypatch).key == config.key


@pytest.mark.skipif(
    not REFERENCE.is_file(), reason="the reference results are not in this checkout"
)
def test_the_commands_of_the_reference_results_give_their_keys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for run in list(Store(REFERENCE).all())[::32]:
        config = RunConfig.from_dict(run.config)
        monkeypatch.setattr(data, "fingerprint", lambda *_, c=config: c.data_fingerprint)
        command = run_command(config)
        assert command is not None
        assert configured_by(command, monkeypatch).key == run.key


def test_the_command_of_a_pfllib_run_names_the_partition_and_nothing_it_decides(
    standin: Profile,
) -> None:
    config = replace(made_config(standin), source="pfllib", setting="pfllib", beta=None)
    words = shlex.split(run_command(config) or "")
    assert words[words.index("--partition") + 1] == "pfllib:PATH"
    assert not {"--dataset", "--source", "--clients", "--setting", "--fraction"} & set(words)
    assert "in place of PATH" in (requirements(config) or "")


def test_the_command_of_a_plugin_names_its_file_and_fingerprint(standin: Profile) -> None:
    config = replace(made_config(standin), algo="mine", plugin="feedbeeffeedbeef")
    assert "--plugin mine.py" in (run_command(config) or "")
    assert "feedbeeffeedbeef" in (requirements(config) or "")


def test_a_stored_name_cannot_leave_its_place_in_the_command(standin: Profile) -> None:
    config = replace(made_config(standin), algo="x'; rm -rf ~; echo $(date)")
    words = shlex.split(run_command(config) or "")
    assert words[words.index("--algo") + 1] == config.algo
    assert run_command(replace(config, algo="x\x1b[201~\nrm")) is None


# --- runs -----------------------------------------------------------------------------------------


def told_run(store: Store) -> dict[str, Any]:
    """The one run of the store, with its details."""
    gathered = gather(store.all())
    [run], [detail] = gathered.runs, gathered.details
    return {**run, **json.loads(detail)}


def test_a_run_is_told_with_its_figures(store: Store, standin: Profile) -> None:
    config = made_config(standin, algo="fedcp", dataset="mnist", clients=2)
    keep(store, config, [[10, 20], [30, 50], [20, 20]])
    run = told_run(store)
    assert run["method"] == "FedCP" and run["dataset"] == "MNIST (stand-in)"
    assert (run["share"], run["model"], run["rounds"]) == ("100 %", "4-layer CNN", 3)
    assert run["best"]["accuracy"] == pytest.approx(0.8) and run["best"]["round"] == 2
    assert run["perClient"] == {"correct": [30, 50], "total": [TEST_SAMPLES] * 2}
    assert run["curve"]["accuracy"] == pytest.approx([0.3, 0.8, 0.4])
    assert run["curve"]["trainLoss"] == pytest.approx([2, 1, 2 / 3], rel=1e-5)
    assert run["curve"]["megabytes"] == [6, 12, 18]
    assert run["curve"]["seconds"] == [0.75, 1.5, 2.25]
    assert (run["bytesUp"], run["bytesDown"]) == (1_000_000, 2_000_000)
    assert run["config"]["hyper.lambda"] == "5.0" and "torch" in run["provenance"]


def test_a_long_curve_is_thinned_and_ends_with_the_last_round(
    store: Store, standin: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "CURVE_POINTS", 10)
    keep(store, made_config(standin), [[round] for round in range(1, 48)])
    run = told_run(store)
    rounds = run["curve"]["round"]
    assert len(rounds) <= 11 and rounds[-1] == 47
    assert run["curve"]["megabytes"] == [3 * round for round in rounds]
    assert run["curve"]["accuracy"] == pytest.approx([round / TEST_SAMPLES for round in rounds])


def test_what_is_drawn_of_a_finished_run_is_worked_out_once(
    store: Store, standin: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, made_config(standin), [[10, 20], [30, 50]])
    first = gather(store.all(), known := {"gone": "{}"})
    assert len(known) == 1 and "gone" not in known
    monkeypatch.setattr(StoredRun, "records", lambda _: pytest.fail("the records were read"))
    assert gather(store.all(), known) == first


def test_records_that_a_first_look_judges_are_drawn_without_parsing_them_again(
    store: Store, standin: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(2):
        keep(store, made_config(standin, seed=seed), [[10 + seed, 20], [30, 50]])
    expected = gather(list(store.all()))  # of all but the last the records are gone by then
    monkeypatch.setattr(RoundRecord, "of_sound", lambda _: pytest.fail("parsed again"))
    assert gather(store.all()) == expected


def test_an_unfinished_run_is_told_as_far_as_it_went(store: Store, standin: Profile) -> None:
    with store.open(made_config(standin)) as writer:
        writer.append(made_record(1, [25, 25]))
    [run] = gather(store.all()).runs
    assert run["status"] == "interrupted" and run["best"]["accuracy"] == 0.5


def test_a_damaged_run_is_listed_with_its_problem(store: Store, standin: Profile) -> None:
    run = keep(store, made_config(standin), [[1]])
    (run.path / "rounds.jsonl").write_bytes(b"")
    gathered = gather(store.all())
    assert gathered.runs == []
    assert gathered.unreadable[0]["folder"] == run.path.name
    assert run.path.name in page_of(store).text


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", {"config": {}}),
        ("config.json", {"config": []}),
        ("config.json", {"config.clients": "many"}),
        ("config.json", {"config.hyper": 3}),
        ("config.json", {"config.algo": ["fedavg"]}),
        ("config.json", {"config.joining_ratio": ["a", "b"]}),
        ("config.json", {"config.beta": "wide"}),
        ("config.json", {"config.seed": "0"}),
        ("summary.json", {"best": 3}),
        ("summary.json", {"best": {"round": 99, "accuracy": 1.0}}),
        ("summary.json", {"total_seconds": "long"}),
        ("summary.json", {"provenance": 5}),
    ],
)
def test_a_sealed_file_of_nonsense_does_not_stop_the_report(
    store: Store, standin: Profile, spec: TableSpec, name: str, change: dict[str, Any]
) -> None:
    keep_table(store, spec, standin, {"FedAvg": 1}, seeds=1)
    bad = keep(store, made_config(standin, rounds=1, clients=2), [[1, 2]])
    document = from_json((bad.path / name).read_bytes())
    del document["digest"]
    for key, value in change.items():
        outer, _, inner = key.partition(".")
        (document[outer] if inner else document)[inner or outer] = value
    (bad.path / name).write_text(seal(document))
    gathered = write_report(store.root / "page.html", store, [spec], [standin], Path("no-data"))
    assert [run["folder"] for run in gathered.unreadable] == [bad.path.name]
    assert len(gathered.runs) == 2


def test_an_experiment_holds_runs_that_differ_in_method_and_seed_alone(
    store: Store, standin: Profile
) -> None:
    for algo in ("fedavg", "fedcp"):
        for seed in (0, 1):
            keep(store, made_config(standin, algo=algo, seed=seed), [[1]])
    keep(store, made_config(standin, {"lambda": 2}, algo="fedcp"), [[1]])
    keep(store, made_config(standin, algo="fedavg", local_epochs=3), [[1]])
    gathered = gather(store.all())
    labels = {one["label"]: [s["label"] for s in one["series"]] for one in gathered.experiments}
    assert sorted(labels.values()) == [["FedAvg"], ["FedAvg", "FedCP", "FedCP (lambda=2)"]]
    assert len(labels) == 2 and any("local epochs 3" in label for label in labels)
    placed = sorted(k for e in gathered.experiments for s in e["series"] for k in s["runs"])
    assert placed == list(range(len(gathered.runs)))


# --- tables ---------------------------------------------------------------------------------------


def told_tables(store: Store, spec: TableSpec, *profiles: Profile) -> list[dict[str, Any]]:
    return tables(ReadResults(store.root, store.all()), [spec], profiles, Path("no-data"))


def cells(table: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    names = [column["name"] for column in table["columns"]]
    return {
        (row["name"], name): cell
        for row in table["rows"]
        for name, cell in zip(names, row["cells"], strict=True)
    }


def test_a_table_needs_its_runs_and_not_their_data(
    store: Store, spec: TableSpec, real: Profile, standin: Profile
) -> None:
    keep_table(store, spec, real, GAINS)
    [table] = told_tables(store, spec, standin, real)
    assert table["profile"] == "realprofile"
    cell = cells(table)["FedCP", "practical MNIST"]
    # The last of four rounds: 20 + 20 correct, one more for each client and each seed, capped.
    expected = 100 * (sum(range(40, 44)) + 4) / (4 * TEST_SAMPLES)
    assert cell["value"] == pytest.approx(expected)
    assert cell["figure"] == "85.00 ± 2.00 ↗" and cell["best"]
    assert cell["interval"] == "[83.00, 87.00]"
    assert cell["beside"] == "paper 98.12, −13.12"
    assert cell["dataset"] == "MNIST" and len(cell["keys"]) == 3


def test_figures_of_the_paper_stand_beside_real_data_only(
    store: Store, spec: TableSpec, real: Profile, standin: Profile
) -> None:
    keep_table(store, spec, standin, GAINS)
    page = page_of(store, told_tables(store, spec, standin))
    assert "rank 1, paper 1" in page.text
    assert not any(figure in page.text for figure in PUBLISHED)
    assert not any(figure in str(page.tags) for figure in ("81.25", "98.125", "90.375", "61.75"))
    keep_table(store, spec, real, GAINS)
    page = page_of(store, told_tables(store, spec, real))
    assert all(f"paper {figure}" in page.text for figure in PUBLISHED)


def test_a_table_of_stand_in_data_says_so_in_its_title(
    store: Store, spec: TableSpec, standin: Profile, real: Profile
) -> None:
    for profile in (standin, real):
        keep_table(store, spec, profile, GAINS)
    assert [table["standin"] for table in told_tables(store, spec, standin, real)] == [True, False]
    shown = [page_of(store, told_tables(store, spec, profile)) for profile in (standin, real)]
    assert ["stand-in data" in page.text for page in shown] == [True, False]


def test_a_table_has_as_many_seeds_as_its_fullest_cell(
    store: Store, spec: TableSpec, standin: Profile
) -> None:
    keep_table(store, spec, standin, {"FedAvg": 1}, seeds=7)
    keep_table(store, spec, standin, {"FedCP": 1}, seeds=2)
    found = cells(told_tables(store, spec, standin)[0])
    assert found["FedAvg", "practical MNIST"]["figure"].startswith("51.00 ± 4.32")
    assert "(2 of 7)" in found["FedCP", "practical MNIST"]["figure"]
    assert found["Ditto", "practical MNIST"]["figure"] == "not run"


def test_a_table_of_which_nothing_is_stored_is_left_out(
    store: Store, spec: TableSpec, standin: Profile
) -> None:
    keep(store, made_config(standin, rounds=9), [[1]])
    assert told_tables(store, spec, standin) == []


def test_a_table_says_share_model_and_rounds_and_has_other_metrics(
    store: Store, spec: TableSpec, standin: Profile
) -> None:
    keep_table(store, spec, standin, GAINS)
    [table] = told_tables(store, spec, standin)
    assert "MNIST (stand-in), all of it, 4-layer CNN, 4 rounds" in table["terms"]
    page = page_of(store, [table])
    assert table["terms"] in page.text
    others = json.loads(page.unpacked("others"))[table["id"]]
    assert set(others) == {"last", "clients", "spread", "worst"}
    worst = cells(table["others"]["worst"])["FedCP", "practical MNIST"]["figure"]
    assert worst in others["worst"] and worst not in page.text


def test_the_page_opens_with_what_is_in_it(store: Store, spec: TableSpec, standin: Profile) -> None:
    keep_table(store, spec, standin, GAINS)
    text = page_of(store).text
    for told in ("3 methods (", "FedCP", "2 datasets (", "Seeds: 0 to 2.", "Rounds: 4."):
        assert told in text.split("Store")[0]


def test_the_methods_of_the_paper_come_first_and_variants_are_told_apart(
    store: Store, standin: Profile
) -> None:
    for algo in ("scaffold", "local", "fedcp", "fedavg"):
        keep(store, made_config(standin, algo=algo), [[1]])
    keep(store, made_config(standin, {"lambda": 2}, algo="fedcp"), [[1]])
    [experiment] = gather(store.all()).experiments
    told = [(one["label"], one["variant"]) for one in experiment["series"]]
    usual = ["FedAvg", "FedCP", "FedCP (lambda=2)", "Local", "SCAFFOLD"]
    assert told == [(label, "lambda" in label) for label in usual]


def test_details_lie_in_parts_that_experiments_name(
    store: Store, spec: TableSpec, standin: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "_TOGETHER", 3)
    keep_table(store, spec, standin, GAINS)
    made = page_of(store)
    assert len({one["part"] for one in made.island["experiments"]}) == 2
    for experiment in made.island["experiments"]:
        details = json.loads(made.unpacked(experiment["part"]))
        for position in (k for one in experiment["series"] for k in one["runs"]):
            assert details[str(position)]["curve"]["round"] == [1, 2, 3, 4]


@pytest.mark.skipif(
    not REFERENCE.is_file(), reason="the reference results are not in this checkout"
)
def test_a_run_adds_less_than_four_kilobytes_to_a_page_of_two_megabytes() -> None:
    gathered = gather(Store(REFERENCE).all())
    assert len(gathered.runs) > 500
    assert len(render_page(gathered, [], "quick")) < 2.1e6 + 4e3 * len(gathered.runs)


# --- nothing is taken for markup ------------------------------------------------------------------


@settings(max_examples=40)
@given(st.text())
def test_the_page_keeps_any_text_and_is_not_led_astray_by_it(text: str) -> None:
    gathered = Gathered(
        runs=[],
        experiments=[{"label": text}],
        unreadable=[{"folder": text, "problem": text}],
    )
    page = Page(render_page(gathered, [], text))
    assert [experiment["label"] for experiment in page.island["experiments"]] == [text]
    assert not any(name.startswith("on") for _, found in page.tags for name in found)


def test_names_from_files_stay_text(store: Store, spec: TableSpec, standin: Profile) -> None:
    keep_table(store, spec, standin, GAINS, seeds=1)
    plain = page_of(store, told_tables(store, spec, standin))
    named = replace(made_config(standin), algo=NASTY, dataset=NASTY, model=NASTY)
    keep(store, named, [[1]], status="diverged")
    nasty = replace(
        spec,
        caption=NASTY,
        groups={spec.columns[0]: NASTY},
        rows=(NASTY,),
        cells={(NASTY, c): replace(spec.cells["FedCP", c], row=NASTY) for c in spec.columns},
    )
    page = page_of(store, told_tables(store, nasty, standin))
    assert len(page.scripts) == len(plain.scripts)
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in plain.tags}
    assert not any(name.startswith("on") for _, found in page.tags for name in found)
    assert page.text.count(NASTY) > 2
    assert any(run["config"]["algo"] == NASTY for run in page.island["runs"])


def test_nothing_is_fetched_and_only_the_pages_own_scripts_run(
    store: Store, spec: TableSpec, standin: Profile
) -> None:
    keep_table(store, spec, standin, GAINS, seeds=1)
    page = page_of(store, told_tables(store, spec, standin))
    for _, attributes in page.tags:
        for name in ("src", "href", "action", "srcset", "data"):
            assert re.match(r"#|data:,$", attributes.get(name) or "#")
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules["default-src"] == "'none'" and "connect-src" not in rules
    kinds = [attributes.get("type") for tag, attributes in page.tags if tag == "script"]
    own = [text for kind, text in zip(kinds, page.scripts, strict=True) if kind is None]
    digests = {
        "'sha256-" + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() + "'"
        for s in (*own, page.unpacked("plotly"))
    }
    assert len(own) == 1 and set(kinds) == {None, "text/plain"}
    assert set(rules["script-src"].split()) == digests


# --- the command ----------------------------------------------------------------------------------


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["report", *arguments])


def test_an_empty_store_gives_a_page_that_says_what_to_run(tmp_path: Path) -> None:
    out = tmp_path / "new folder" / "page.html"
    result = call("--results", str(tmp_path / "none"), "--out", str(out))
    assert result.exit_code == 0 and "No results" in result.output
    text = out.read_text(encoding="utf-8")
    assert len(text) < 100_000
    commands = [a["data-copy"] for _, a in Page(text).tags if "data-copy" in a]
    assert [str(command).split()[:2] for command in commands] == [
        ["pfl-bench", "run"],
        ["pfl-bench", "table"],
        ["pfl-bench", "report"],
    ]


def test_only_the_tables_that_were_asked_for_are_shown(
    tmp_path: Path, store: Store, spec: TableSpec, standin: Profile
) -> None:
    keep_table(store, spec, standin, GAINS, seeds=1)
    out = tmp_path / "page.html"
    profile = ("--profile", str(tmp_path / "standinprofile.yaml"))
    options = ("--results", str(store.root), "--out", str(out), *profile)
    for names, shown in (("main", 0), (f"main,{tmp_path / 'made.yaml'}", 1)):
        assert call(*options, "--tables", names).exit_code == 0
        articles = [
            tag for tag, _ in Page(out.read_text(encoding="utf-8")).tags if tag == "article"
        ]
        assert len(articles) == shown


def test_the_command_of_a_table_of_ones_own_names_its_plugins(
    tmp_path: Path, store: Store, spec: TableSpec, standin: Profile
) -> None:
    keep_table(store, spec, standin, GAINS, seeds=1)
    out, table = tmp_path / "page.html", tmp_path / "made.yaml"
    profile = ("--profile", str(tmp_path / "standinprofile.yaml"))
    options = ("--results", str(store.root), "--out", str(out), *profile)
    with loaded_plugins(tmp_path, {"twin": "pass"}) as (plugin,):
        call(*options, "--tables", str(table), "--plugin", str(plugin))
    assert f"pfl-bench table {table} --plugin {plugin} " in out.read_text(encoding="utf-8")


def test_a_misspelt_table_is_one_sentence(tmp_path: Path) -> None:
    result = call("--results", str(tmp_path), "--tables", "mian")
    assert result.exit_code == 2 and "did you mean 'main'" in result.output


def test_a_page_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("--results", str(tmp_path / "none"), "--out", str(tmp_path / "file" / "x.html"))
    assert result.exit_code == 2 and result.output.count("\n") == 1
    assert "cannot write" in result.output


@pytest.mark.parametrize("package", ["jinja2", "plotly.offline"])
def test_a_missing_extra_is_one_sentence_with_the_command_that_installs_it(
    package: str, store: Store, standin: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, made_config(standin), [[1]])
    monkeypatch.setitem(sys.modules, package, None)
    options = ("--out", str(tmp_path / "page.html"), "--tables", "main", "--profile", "quick")
    result = call("--results", str(store.root), *options)
    assert result.exit_code == 2 and result.output.count("\n") == 1
    assert install_command("report") in result.output
    assert not (tmp_path / "page.html").exists()
