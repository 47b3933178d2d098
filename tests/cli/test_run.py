"""`pfl-bench run`, `list` and `show` as a user meets them: output, exit codes, kills."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from prepared import NAME, prepare_toy

from pfl_bench.cli import main
from pfl_bench.cli.views.run import report
from pfl_bench.config.hyper import knobs
from pfl_bench.config.run_config import RunConfig
from pfl_bench.plugins.registry import algorithm_names, load_algorithm
from pfl_bench.store.records import same_result
from pfl_bench.store.store import Store
from pfl_bench.store.stored_run import StoredRun

COMMAND = (sys.executable, "-c", "from pfl_bench.cli import main; main()")
HEAVY = ("torch", "numpy", "pandas", "matplotlib", "torchvision", "seaborn")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_toy(tmp_path_factory.mktemp("data"), samples=80)


class Bench:
    """The command with the toy problem and a store of the test's own."""

    def __init__(self, folder: Path, store: Store):
        self.store = store
        self.flags = (
            "--dataset", NAME, "--data-dir", str(folder), "--results", str(store.root),
            "--clients", "2", "--rounds", "3", "--lr", "0.05", "--setting", "iid",
        )  # fmt: skip

    def arguments(self, *more: str) -> tuple[str, ...]:
        said = more + tuple(Path(file).read_text() for file in more if Path(file).is_file())
        is_named = any(word in text for text in said for word in ("--algo", "--plugin", "algo:"))
        named = () if is_named else ("--algo", "fedavg")
        return ("run", *self.flags, *named, *more)

    def run(self, *more: str) -> Result:
        """In this process; a later flag wins over an earlier one."""
        return CliRunner().invoke(main, self.arguments(*more))

    def succeed(self, *more: str) -> Result:
        result = self.run(*more)
        assert result.exit_code == 0, result.output
        return result

    def refused(self, *more: str) -> str:
        """The one sentence of a refusal."""
        result = self.run(*more)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert result.stderr.count("\n") == 1
        return result.stderr

    def start(self, *more: str) -> subprocess.Popen[str]:
        """In a process of its own that can be killed."""
        pipe = subprocess.PIPE
        arguments = (*COMMAND, *self.arguments(*more))
        return subprocess.Popen(arguments, stdout=pipe, stderr=pipe, text=True)

    def only(self) -> StoredRun:
        (run,) = self.store.all()
        return run


@pytest.fixture
def bench(folder: Path, store: Store) -> Bench:
    return Bench(folder, store)


def assert_same_records(left: StoredRun, right: StoredRun) -> None:
    assert all(same_result(a, b) for a, b in zip(left.records(), right.records(), strict=True))


# --- what is printed ------------------------------------------------------------------------------


def test_report_shows_the_figures_of_the_stored_result(bench: Bench) -> None:
    output = bench.succeed().stdout
    run = bench.only()
    assert run.summary is not None
    for name in ("best", "last"):
        score = run.summary[name]
        line = next(line for line in output.splitlines() if f"{name} accuracy" in line)
        assert f"{score['accuracy']:.2%} (round {score['round']})" in line
        assert f"{score['mean_over_clients']:.2%} ± {score['std_over_clients']:.2%}" in line
    assert f"{run.summary['bytes_up_per_client'] / 1e3:.4g} kB up" in output
    assert str(run.path) in output
    assert "[lite profile]" in output


def test_same_command_again_reports_the_stored_result_and_trains_nothing(bench: Bench) -> None:
    first = bench.succeed()
    written = (bench.only().path / "summary.json").stat().st_mtime_ns
    again = bench.succeed()
    assert again.stdout.startswith(first.stdout)
    assert "stored earlier" in again.stdout.removeprefix(first.stdout)
    assert "round 1/3" in first.stderr and "round" not in again.stderr
    assert (bench.only().path / "summary.json").stat().st_mtime_ns == written


def test_fresh_trains_again(bench: Bench) -> None:
    bench.succeed()
    assert "round 3/3" in bench.succeed("--fresh").stderr


def test_several_seeds_are_reported_with_mean_and_standard_deviation(bench: Bench) -> None:
    output = bench.succeed("--seeds", "3", "--seed", "4").stdout
    runs = list(bench.store.all())
    assert sorted(run.config["seed"] for run in runs) == [4, 5, 6]
    best = [run.summary["best"]["accuracy"] for run in runs if run.summary]
    expected = f"{statistics.mean(best):.2%} ± {statistics.stdev(best):.2%}"
    assert output.splitlines()[-1] == f"best accuracy over 3 seeds: {expected}"


def test_the_mean_is_that_of_finished_runs(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.succeed("--seeds", "3")
    runs = sorted(bench.store.all(), key=lambda run: run.config["seed"])
    ended = [(RunConfig.from_dict(run.config), run) for run in runs]
    config, last = ended[-1]
    last = replace(last, status="diverged", summary={**(last.summary or {}), "reason": "nan"})
    report([*ended[:-1], (config, last)], "quick", ())
    assert "best accuracy over 2 seeds" in capsys.readouterr().out


def test_json_on_stdout_is_all_there_is(bench: Bench) -> None:
    result = bench.succeed("--json", "--seeds", "2")
    rows = json.loads(result.stdout)
    assert result.stderr == ""
    assert [row["config"]["seed"] for row in rows] == [0, 1]
    runs = {run.key: run for run in bench.store.all()}
    for row in rows:
        summary = runs[row["key"]].summary
        assert summary is not None
        assert row["best"] == summary["best"]
        assert Path(row["path"]) == runs[row["key"]].path


def test_json_of_a_run_that_diverged_is_strict(bench: Bench) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    (row,) = json.loads(bench.succeed("--json", "--lr", "1e6").stdout, parse_constant=refuse)
    assert row["status"] == "diverged"


def test_quiet_prints_the_end_only(bench: Bench) -> None:
    result = bench.succeed("--quiet")
    assert result.stderr == ""
    assert "best accuracy" in result.stdout


def test_output_that_is_no_terminal_gets_plain_lines(bench: Bench) -> None:
    result = bench.succeed()
    assert "\x1b" not in result.output and "\r" not in result.output
    title, _, first, last = result.stderr.splitlines()
    assert title == "fedavg on toy, iid, 2 clients, cnn_small, seed 0"
    assert re.fullmatch(r"round 1/3: accuracy [\d.]+%, best [\d.]+%, .* left", first)
    assert last.startswith("round 3/3: ")


def test_diverged_run_succeeds_with_a_warning(bench: Bench) -> None:
    result = bench.succeed("--lr", "1e6", "--rounds", "50")
    assert "Warning: the run diverged, the training loss of client" in result.stderr
    assert "diverged after round" in result.stdout


def test_impossible_run_succeeds_with_its_reason(bench: Bench) -> None:
    result = bench.succeed("--algo", "perfedavg", "--batch-size", "50")
    assert "skipped: Per-FedAvg needs two batches (100 training samples)" in result.stdout


# --- configuration files --------------------------------------------------------------------------


def write(folder: Path, text: str) -> str:
    path = folder / "exp.yaml"
    path.write_text(text)
    return str(path)


def configured(bench: Bench, *more: str) -> dict[str, Any]:
    (row,) = json.loads(bench.succeed("--json", *more).stdout)
    return row["config"]


def test_flags_win_over_the_file_and_the_file_over_the_profile(
    bench: Bench, tmp_path: Path
) -> None:
    file = write(tmp_path, "algo: fedprox\nrounds: 9\nlocal_epochs: 2\nset: {mu: 0.5}\n")
    config = configured(bench, "--config", file)
    assert (config["rounds"], config["local_epochs"]) == (3, 2)
    assert (config["algo"], config["hyper"]) == ("fedprox", {"mu": 0.5})


def test_set_wins_over_the_files_hyper_parameters(bench: Bench, tmp_path: Path) -> None:
    file = write(tmp_path, "algo: fedprox\nset: {mu: 0.5}\n")
    assert configured(bench, "--config", file, "--set", "mu=0.25")["hyper"] == {"mu": 0.25}


def test_file_may_choose_profile_and_number_of_seeds(bench: Bench, tmp_path: Path) -> None:
    file = write(tmp_path, "profile: paper\nseeds: 2\n")
    output = bench.succeed("--config", file).stdout
    assert "[paper profile]" in output
    assert "over 2 seeds" in output


def test_an_empty_profile_or_number_of_seeds_in_a_file_says_nothing(
    bench: Bench, tmp_path: Path
) -> None:
    output = bench.succeed("--config", write(tmp_path, "profile:\nseeds:\n")).stdout
    assert "[lite profile]" in output and "seeds:" not in output


def test_a_run_begins_and_ends_with_what_it_takes_and_how_it_trains(bench: Bench) -> None:
    how = "cnn_small, learning rate 0.05, batch 10, 1 local epoch, up to 3 rounds, patience 20"
    told = f"of the data, {how}"
    result = bench.succeed()
    assert f"\n  all {told}\n" in result.stderr
    assert f"\n  training        all {told}\n" in result.stdout
    assert (
        f"50% {told.replace('epoch', 'epochs').replace('1 ', '2 ')}"
        in bench.succeed("--fraction", "0.5", "--local-epochs", "2").stdout
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("roundz: 3", "unknown key 'roundz'; did you mean 'rounds'"),
        ("lr: fast", "lr cannot be 'fast'"),
        ("set: 3", "set must hold names and values, not 3"),
        ("set: {mu: 1}", "unknown hyper-parameter of fedavg 'mu'"),
        ("seeds: some", "seeds cannot be 'some'"),
        ("profile: qick", "unknown profile 'qick'; did you mean 'quick'"),
        ("local_epochs: 1\nlocal_epochs: 2", "the key 'local_epochs' is given twice"),
    ],
)
def test_mistake_in_a_file_is_one_sentence(
    bench: Bench, tmp_path: Path, text: str, complaint: str
) -> None:
    assert complaint in bench.refused("--config", write(tmp_path, text))


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--algo", "fedcpp"), "unknown algorithm 'fedcpp'; did you mean 'fedcp'?"),
        (("--dataset", "tony"), "unknown dataset 'tony'; did you mean 'toy'?"),
        (("--set", "mu"), "--set cannot be 'mu'; allowed: NAME=VALUE"),
        (("--set", "=1"), "--set cannot be '=1'"),
        (("--set", "mu=1"), "unknown hyper-parameter of fedavg 'mu'; allowed: none"),
        (("--algo", "fedprox", "--set", "mu=x"), "fedprox cannot take mu='x'; allowed: a number"),
        (("--clients", "-3"), "clients cannot be '-3'; allowed: a whole number from 1"),
        (("--beta", "0.5"), "beta 0.5 belongs to the practical setting, not to 'iid'"),
        (("--clients", "999"), "80 samples are too few for 999 clients"),
        (("--model", "fasttext"), "model 'fasttext' reads texts"),
        (("--seeds", "0"), "seeds cannot be '0'; allowed: a whole number from 1 to 1000"),
        (("--profile", "qick"), "unknown profile 'qick'; did you mean 'quick'?"),
        (("--device", "gpu"), "unknown device 'gpu'"),
        (("--config", "nowhere.yaml"), "there is no file 'nowhere.yaml'"),
        (("--joining-ratio", "0"), "joining_ratio cannot be '0'"),
    ],
)
def test_mistake_is_one_sentence_with_exit_code_two_and_no_trace(
    bench: Bench, flags: tuple[str, ...], complaint: str
) -> None:
    assert complaint in bench.refused(*flags)
    assert not bench.store.root.exists()


def test_store_that_cannot_be_written_is_named(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot write to" in bench.refused("--results", str(tmp_path / "file"))


def test_pfllib_partition_may_stand_beside_a_data_folder(tmp_path: Path, folder: Path) -> None:
    mine = tmp_path / "mine"
    for part in ("train", "test"):
        (mine / part).mkdir(parents=True)
        x = np.zeros((4, 1, 16, 16), dtype=np.float32)
        content = np.array({"x": x, "y": np.arange(4) % 2}, dtype=object)
        np.savez(mine / part / "0.npz", data=content)
    (mine / "config.json").write_text(json.dumps({"num_clients": 1, "num_classes": 2}))
    flags = ("--partition", f"pfllib:{mine}", "--data-dir", str(folder), "--rounds", "1")
    flags = ("--algo", "fedavg", *flags)
    result = CliRunner().invoke(main, ("run", *flags, "--results", str(tmp_path / "results")))
    assert result.exit_code == 0, result.output
    assert "fedavg on mine, pfllib, 1 clients" in result.stdout


def test_a_run_ends_with_its_curve_as_a_line(bench: Bench) -> None:
    output = bench.succeed().stdout
    (line,) = (line for line in output.splitlines() if line.startswith("  curve  "))
    scores = [100 * record.accuracy for record in bench.only().records() if record.accuracy]
    drawn, figures = line.split()[1], " ".join(line.split()[2:])
    assert len(drawn) == 3 and set(drawn) <= set("▁▂▃▄▅▆▇█")
    assert figures == f"{min(scores):.2f} % to {max(scores):.2f} %, rounds 1 to 3"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_documented_completion_is_a_program_for_its_shell(shell: str) -> None:
    asked = {"_PFL_BENCH_COMPLETE": f"{shell}_source"}
    said = CliRunner().invoke(main, (), prog_name="pfl-bench", env=asked)
    assert said.exit_code == 0 and "_pfl_bench_completion" in said.output
    page = (Path(__file__).parents[2] / "docs/settings.md").read_text()
    assert f"_PFL_BENCH_COMPLETE={shell}_source pfl-bench" in page


# --- which methods, which seeds -------------------------------------------------------------------


def test_without_an_algorithm_the_sentence_names_them_all() -> None:
    refused = CliRunner().invoke(main, ("run",))
    assert refused.exit_code == 2 and refused.stderr.count("\n") == 1
    assert refused.stderr.startswith("Error: `run` needs an algorithm: --algo ")
    assert all(name in refused.stderr for name in algorithm_names())


@pytest.mark.parametrize(
    "said", [("--algo", "fedavg,Fed-Per"), ("--algo", "fedavg", "--algo", "FedPer")]
)
def test_several_methods_run_and_end_with_a_small_table(bench: Bench, said: tuple[str]) -> None:
    output = bench.succeed(*said, "--seeds", "2", "--quiet").stdout
    runs = {(run.config["algo"], run.config["seed"]): run for run in bench.store.all()}
    assert runs.keys() == {(algo, seed) for algo in ("fedavg", "fedper") for seed in (0, 1)}
    heading, *table = output.splitlines()[-3:]
    assert heading == "best accuracy over seeds"
    for line in table:
        algo, mean, _, spread = line.split()
        scores = [runs[algo, seed].summary["best"]["accuracy"] for seed in (0, 1)]  # type: ignore[index]
        assert (mean, spread) == (f"{np.mean(scores):.2%}", f"{np.std(scores, ddof=1):.2%}")


def test_of_several_methods_each_takes_the_hyper_parameters_it_has(bench: Bench) -> None:
    bench.succeed("--algo", "fedavg,fedprox", "--set", "mu=0.5", "--rounds", "1")
    hyper = {run.config["algo"]: run.config["hyper"] for run in bench.store.all()}
    assert hyper == {"fedavg": {}, "fedprox": {"mu": 0.5}}
    refused = bench.run("--algo", "fedavg,fedprox", "--set", "nu=0.5")
    assert refused.exit_code == 2
    assert "unknown hyper-parameter of fedavg, fedprox 'nu'" in refused.output


def test_a_plugin_without_an_algorithm_means_the_plugins(bench: Bench, tmp_path: Path) -> None:
    assert CliRunner().invoke(main, ("new", "mine_alone", "--out", str(tmp_path))).exit_code == 0
    bench.succeed("--plugin", str(tmp_path / "mine_alone.py"), "--rounds", "1")
    assert bench.only().config["algo"] == "mine_alone"


@pytest.mark.parametrize("said", ["5,3", "[5, 3]"])
def test_seeds_may_be_named_one_by_one(bench: Bench, tmp_path: Path, said: str) -> None:
    if said.startswith("["):
        bench.succeed("--config", write(tmp_path, f"seeds: {said}\n"), "--rounds", "1")
    else:
        bench.succeed("--seeds", said, "--rounds", "1")
    assert {run.config["seed"] for run in bench.store.all()} == {3, 5}


@pytest.mark.parametrize("said", ["0", "1,1", "1,", ",", "-1,2", "1.5,2", "1001"])
def test_seeds_that_cannot_be_are_a_sentence(bench: Bench, said: str) -> None:
    refused = bench.run(f"--seeds={said}")
    assert refused.exit_code == 2
    assert f"seeds cannot be '{said}'; allowed: a whole number" in refused.output


def test_a_list_of_seeds_and_a_first_one_exclude_each_other(bench: Bench) -> None:
    refused = bench.run("--seeds", "1,2", "--seed", "7")
    assert refused.exit_code == 2 and "seed 7 and a list of seeds" in refused.output


# --- help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help")])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    program = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print('heavy:', sorted(set({HEAVY}) & sys.modules.keys())))\n"
        "from pfl_bench.cli import main; main()"
    )
    done = subprocess.run(
        (sys.executable, "-c", program, *arguments), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_every_setting_has_a_flag_with_its_meaning() -> None:
    from pfl_bench.config.options import OPTIONS

    text = " ".join(CliRunner().invoke(main, ("run", "--help")).stdout.split())
    for name, knob in OPTIONS.items():
        assert re.search(rf"--{name.replace('_', '-')}[ ,]", text)
        assert knob.meaning in text


# --- kills, interruptions, workers ----------------------------------------------------------------

LONG = ("--rounds", "80", "--joining-ratio", "0.5-1", "--clients", "4")


@pytest.fixture(scope="module")
def undisturbed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    """The long run, with one worker and left in peace."""
    bench = Bench(folder, Store(tmp_path_factory.mktemp("undisturbed")))
    bench.succeed(*LONG, "--workers", "1")
    return bench.only()


def rounds_recorded(bench: Bench) -> Iterator[int]:
    """How many rounds the running command has recorded, looked up again and again."""
    patience = time.monotonic() + 60
    while time.monotonic() < patience:
        yield sum(path.read_bytes().count(b"\n") for path in bench.store.root.rglob("*.jsonl"))
        time.sleep(0.005)
    raise AssertionError("the command does not get on")


def wait_for_round(bench: Bench, round: int) -> None:
    next(count for count in rounds_recorded(bench) if count >= round)


def test_two_workers_leave_the_records_of_one(bench: Bench, undisturbed: StoredRun) -> None:
    bench.succeed(*LONG, "--workers", "2")
    assert_same_records(bench.only(), undisturbed)


def test_killed_run_continues_to_the_same_records(bench: Bench, undisturbed: StoredRun) -> None:
    process = bench.start(*LONG, "--checkpoint-every", "5")
    wait_for_round(bench, 12)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGKILL
    assert bench.only().status == "interrupted"
    result = bench.succeed(*LONG, "--checkpoint-every", "5")
    match = re.search(r"continues after round (\d+)", result.stderr)
    assert match is not None and int(match[1]) >= 10
    assert_same_records(bench.only(), undisturbed)


def test_interrupted_run_stops_soon_says_how_to_continue_and_does(
    bench: Bench, undisturbed: StoredRun
) -> None:
    process = bench.start(*LONG)
    wait_for_round(bench, 8)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 130
    assert err.splitlines()[-1] == "Stopped. The same command continues where it left off."
    assert "Traceback" not in err
    result = bench.succeed(*LONG)
    match = re.search(r"continues after round (\d+)", result.stderr)
    assert match is not None and int(match[1]) >= 8
    assert_same_records(bench.only(), undisturbed)


def test_reader_that_goes_away_is_no_error(bench: Bench) -> None:
    bench.succeed("--seeds", "2")
    process = bench.start("--seeds", "2", "--json")
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err


# --- list and show --------------------------------------------------------------------------------


def listed(kind: str) -> dict[str, str]:
    result = CliRunner().invoke(main, ("list", kind))
    assert result.exit_code == 0, result.output
    return {line.split()[0]: line for line in result.stdout.splitlines()}


def test_list_shows_the_papers_methods_first_then_local_then_further_ones() -> None:
    names = list(listed("algos"))
    paper = [name for name in names if load_algorithm(name).group == "paper"]
    assert names[: len(paper)] == paper and paper[-1] == "local"
    assert paper[:-1] == sorted(paper[:-1]) and len(names) > len(paper) == 13


def test_list_names_every_algorithm_with_its_summary() -> None:
    rows = listed("algos")
    assert sorted(rows) == algorithm_names()
    assert all(load_algorithm(name).summary in row for name, row in rows.items())


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("datasets", {"mnist", "cifar10", "cifar100", "tinyimagenet", "agnews"}),
        ("models", {"cnn", "resnet18", "fasttext", "cnn_small", "resnet_small"}),
        ("profiles", {"quick", "lite", "paper"}),
        ("settings", {"practical", "pathological", "iid", "N|M", "pfllib"}),
    ],
)
def test_list_names_what_there_is(kind: str, names: set[str]) -> None:
    assert names <= listed(kind).keys()


def test_list_of_something_else_is_refused_with_what_there_is() -> None:
    result = CliRunner().invoke(main, ("list", "algorithms"))
    assert result.exit_code == 2
    assert "unknown list 'algorithms'" in result.stderr and "algos" in result.stderr


def test_show_counts_what_is_kept_and_sent() -> None:
    """FedPer on MNIST keeps the head (512·10 + 10) and sends the rest of 582,026."""
    output = CliRunner().invoke(main, ("show", "fedper", "--dataset", "mnist")).stdout
    assert "keeps     head (5,130)" in output
    assert "sends     576,896 parameters, 2,307,584 bytes" in output


def test_show_counts_the_words_of_a_text_set_of_ones_own(tmp_path: Path) -> None:
    """Five words and the padding, 32 numbers each; a layer of 32·32 + 32, a head of 32·2 + 2."""
    (tmp_path / "words.csv").write_text("1,a b\n2,c d\n1,a a\n2,d d e\n")
    arguments = ("show", "fedavg", "--dataset", "words", "--data-dir", str(tmp_path))
    assert "on words (1,314 parameters)" in CliRunner().invoke(main, arguments).stdout


def test_show_counts_the_whole_vocabulary_of_ag_news_without_its_file(tmp_path: Path) -> None:
    arguments = ("show", "fedavg", "--dataset", "agnews", "--data-dir", str(tmp_path))
    assert "on AG News (3,157,508 parameters)" in CliRunner().invoke(main, arguments).stdout


@pytest.mark.parametrize(("models", "clients"), [(10, 11), (1000, 12)])
def test_show_has_clients_for_all_the_models_that_are_sent_and_says_how_many(
    models: int, clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of FedFomo receives M models of 582,026 parameters, or those of all others."""
    monkeypatch.setattr("pfl_bench.plugins.inspection.MOST_CLIENTS", 12)
    arguments = ("show", "fedfomo", "--dataset", "mnist", "--set", f"M={models}")
    output = CliRunner().invoke(main, arguments).stdout
    assert f"each of {clients} clients\n" in output
    assert f"receives  {(clients - 1) * 582_026:,} parameters" in output


def test_show_explains_every_hyper_parameter() -> None:
    output = CliRunner().invoke(main, ("show", "fedprox", "--dataset", "mnist")).stdout
    for knob in knobs(load_algorithm("fedprox").Hyper).values():
        assert knob.meaning in output and knob.source in output
    assert "mu = 0.001" in output


def test_no_help_loads_torch() -> None:
    script = (
        "import sys, click\n"
        "from pfl_bench.cli import main\n"
        "names = main.list_commands(click.Context(main))\n"
        "for name in names:\n"
        "    try:\n"
        "        main([name, '--help'], standalone_mode=False)\n"
        "    except SystemExit:\n"
        "        pass\n"
        "print(len(names), 'torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    number, is_loaded = done.stdout.split()[-2:]
    assert int(number) > 5 and is_loaded == "False"
