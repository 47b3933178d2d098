"""The pieces of `scripts/bench --peers` that need no peer: problem, laps of a driver, rows; and the
drivers of peers that come in a folder, with a folder that only has the names they call."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main, named_methods
from benchmarks.peers import contest
from benchmarks.peers.contest import DRIVERS, OURS, driven, rows
from benchmarks.peers.environments import PEERS
from benchmarks.peers.problem import export


def test_the_problem_is_ours_in_plain_arrays(tmp_path: Path) -> None:
    path = tmp_path / "problem.npz"
    simulator = export(path, 400).simulator(workers=1)
    with np.load(path) as file:
        assert int(file["clients"]) == len(simulator.shards)
        for k, shard in enumerate(simulator.shards):
            assert file[f"train/{k}"].tolist() == shard.train.tolist()
            assert file[f"test/{k}"].tolist() == shard.test.tolist()
        assert file["model/extractor.conv2.weight"].shape == (64, 32, 5, 5)
        assert file["x"].shape == (400, 32, 32, 3)


def test_a_driver_runs_a_lap_when_it_is_told(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(
        dedent(f"""
        import sys
        sys.path.insert(0, {str(DRIVERS)!r})
        from common import serve
        laps = []
        def lap():
            laps.append(1)
            print("said beside the answers")
            return len(laps) / 10
        serve(lap)
        """)
    )
    with driven([sys.executable, script], tmp_path / "log", threads=1) as driver:
        told = [driver.lap() for _ in range(2)]
    assert [lap["accuracy"] for lap in told] == [0.1, 0.2]
    assert all(lap["seconds"] >= 0 and lap["memory"] > 0 for lap in told)
    assert "beside" in (tmp_path / "log").read_text()


def test_a_driver_that_ends_is_noticed(tmp_path: Path) -> None:
    ends = [sys.executable, "-c", "raise SystemExit(1)"]
    with (
        pytest.raises(RuntimeError, match="it ended"),
        driven(ends, tmp_path / "log", threads=1),
    ):
        pass


def test_ratios_are_of_the_same_lap() -> None:
    def laps(*seconds: float) -> list[dict[str, float]]:
        return [{"seconds": s, "processor": 2 * s, "memory": 5, "accuracy": 0.5} for s in seconds]

    ours, peer = rows({OURS: laps(1, 4, 2), "peer": laps(2, 12, 5)}, {"peer": "slow"})
    assert (ours.seconds, ours.low, ours.high, ours.ratio.median) == (2, 1, 4, 1)
    assert (peer.ratio.low, peer.ratio.median, peer.ratio.high) == (2, 2.5, 3)
    assert peer.differs == "slow"


def test_every_peer_has_a_driver_and_says_what_differs() -> None:
    for peer in PEERS:
        assert (DRIVERS / f"{peer.driver}.py").is_file()
        assert peer.differs and peer.requirements


FROM_A_FOLDER = {peer.name: peer for peer in PEERS if peer.source}


@pytest.mark.parametrize("name", FROM_A_FOLDER)
def test_a_folder_that_is_no_checkout_is_refused_by_the_file_it_lacks(
    tmp_path: Path, name: str
) -> None:
    peer = FROM_A_FOLDER[name]
    arguments = ["--peers", peer.option, str(tmp_path), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert name in result.output and peer.source in result.output
    assert len(result.output.splitlines()) == 1


def test_methods_are_named_in_any_spelling_and_all_are_those_of_some_peer() -> None:
    assert named_methods("FedCP,per-fedavg") == ["fedcp", "perfedavg"]
    assert set(named_methods("all")) == {method for peer in PEERS for method in peer.methods}
    result = CliRunner().invoke(main, ["--peers", "--methods", "fedcq"])
    assert result.exit_code == 1 and "fedcq" in result.output


class Steady:
    """A driver whose laps are all alike."""

    def lap(self) -> dict[str, float]:
        return {"seconds": 1.0, "processor": 1.0, "memory": 1.0, "accuracy": 0.5}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of a contest in which nothing is installed or run."""
    given: list[list[str]] = []

    @contextmanager
    def driven(command: Sequence[str | Path], log: Path, threads: int) -> Iterator[Steady]:
        given.append([str(word) for word in command])
        yield Steady()

    monkeypatch.setattr(contest, "driven", driven)
    monkeypatch.setattr(contest, "python_of", lambda peer, folder: f"python of {peer.name}")
    return given


def measured(folder: Path, only: str, method: str, sources: Mapping[str, Path]):
    return contest.measure(folder, 400, 1, 1, only, lambda line: None, [method], sources)


def test_a_peer_from_a_folder_is_told_the_folder_and_ours_is_not(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    sources = {"PFLlib": tmp_path / "PFLlib", "FL-bench": tmp_path / "FL-bench"}
    found, failed = measured(tmp_path, "L", "fedper", sources)
    ours, *peers = commands
    assert len(ours) == 4 and ours[1] == str(DRIVERS / "ours.py")
    for (name, folder), command in zip(sources.items(), peers, strict=True):
        driver = DRIVERS / f"{FROM_A_FOLDER[name].driver}.py"
        assert command == [f"python of {name}", str(driver), *ours[2:], str(folder)]
    assert [(row.method, row.name) for row in found] == [
        ("FedPer", name) for name in (OURS, *sources)
    ]
    assert not failed


def test_who_is_left_out_is_said_and_how_a_folder_would_help(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    found, failed = measured(tmp_path, "", "fedcp", {})
    assert [row.name for row in found] == [OURS]
    assert all(peer.option in failed[name] for name, peer in FROM_A_FOLDER.items())
    assert "FedCP" in failed["Flower"]


def test_a_method_that_the_partition_does_not_allow_is_left_out_with_our_reason(
    tmp_path: Path, commands: list[list[str]]
) -> None:
    found, failed = measured(tmp_path, "PFLlib", "perfedavg", {"PFLlib": tmp_path})
    assert not found and not commands
    assert "two batches" in failed["Per-FedAvg"]


def test_pfllib_s_driver_knows_the_methods_that_are_promised() -> None:
    tree = ast.parse((DRIVERS / "pfllib.py").read_text())
    table = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "METHODS"
    )
    assert set(FROM_A_FOLDER["PFLlib"].methods) == {
        ast.literal_eval(key)
        for key in table.keys  # type: ignore[attr-defined]
    }


CNN = """
from torch import nn
class Cnn(nn.Module):
    def __init__(self, *ignored, **too):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 32, 5), nn.Conv2d(32, 64, 5)
        self.fc1, self.fc = nn.Linear(1600, 512), nn.Linear(512, 10)
"""

PFLLIB = {
    "main.py": """
        if __name__ == "__main__":
            parser = argparse.ArgumentParser()
            parser.add_argument("-go", "--goal", type=str, default="the checkout's")
            parser.add_argument("-lam", "--lamda", type=float, default=1.0)
        """,
    "flcore/trainmodel/models.py": CNN
    + """
FedAvgCNN = Cnn
class BaseHeadSplit(nn.Module):
    def __init__(self, base, head):
        super().__init__()
        self.base, self.head = base, head
""",
    "flcore/servers/serverpFedMe.py": """
        import numpy as np
        class pFedMe:
            def __init__(self, args, times):
                self.rounds, self.rs_test_acc_per = args.global_rounds, []
                with np.load("../dataset/Cifar10/train/3.npz", allow_pickle=True) as file:
                    data = file["data"].tolist()
                print("options", args.goal, args.lamda, args.K, args.beta, args.num_clients)
                print("samples", data["x"].shape, data["y"].tolist())
                print("weight", float(args.model.base.conv2.weight.sum()))
            def evaluate_personalized(self):
                self.rs_test_acc_per.append(len(self.rs_test_acc_per) / 10)
            def train(self):
                for _ in range(self.rounds):
                    self.evaluate_personalized()
        """,
}

FL_BENCH = {
    "omegaconf.py": """
        from types import SimpleNamespace
        class OmegaConf:
            @staticmethod
            def create(tree):
                if not isinstance(tree, dict):
                    return tree
                return SimpleNamespace(**{k: OmegaConf.create(v) for k, v in tree.items()})
        """,
    "hydra/core/hydra_config.py": """
        class HydraConfig:
            one = None
            @classmethod
            def instance(cls):
                cls.one = cls.one or cls()
                return cls.one
        """,
    "src/utils/functional.py": """
        def parse_args(config, method, own):
            return config
        """,
    "src/server/fedavg.py": CNN
    + """
import pickle
from types import SimpleNamespace
FLBENCH_ROOT, DATASETS, DATA_MEAN, DATA_STD, MODELS = None, {}, {}, {}, {"avgcnn": Cnn}
BaseDataset = SimpleNamespace
class FedAvgServer:
    def __init__(self, args):
        self.args, self.current_epoch, self.test_results = args, 0, {}
        folder = FLBENCH_ROOT / "data" / args.dataset.name
        indices = pickle.loads((folder / "partition.pkl").read_bytes())["data_indices"]
        data = DATASETS[args.dataset.name](root=folder, args=None)
        rows = indices[3]["train"]
        print("options", args.optimizer.lr, args.common.batch_size, vars(args.ditto))
        print("samples", tuple(data.data[rows].shape), data.targets[rows].tolist())
        model = MODELS[args.model.name](dataset=args.dataset.name, pretrained=False)
        print("weight", float(model.conv2.weight.sum()))
    def test_client_models(self):
        score = SimpleNamespace(accuracy=10 * self.current_epoch)
        found = {"before": {"test": score}, "after": None}
        self.test_results[self.current_epoch + 1] = {"all_clients": found}
    def train(self):
        for self.current_epoch in range(1, self.args.common.global_epoch):
            self.test_client_models()
""",
    "src/server/ditto.py": """
        from src.server.fedavg import FedAvgServer
        class DittoServer(FedAvgServer):
            pass
        """,
}


@pytest.mark.parametrize(
    ("driver", "method", "under", "files", "options"),
    [
        ("pfllib", "pfedme", "system", PFLLIB, "the checkout's 15.0 5 1.0 20"),
        ("fl_bench", "ditto", "", FL_BENCH, "0.005 10 {'lamda': 1.0, 'pers_epoch': 1}"),
    ],
)
def test_a_driver_gives_a_checkout_our_problem_and_waits_after_every_score(
    tmp_path: Path, driver: str, method: str, under: str, files: dict[str, str], options: str
) -> None:
    source = tmp_path / "source"
    for name, text in files.items():
        path = source / under / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    path, log = tmp_path / "problem.npz", tmp_path / "log"
    export(path, 400, method)
    command = [sys.executable, DRIVERS / f"{driver}.py", path, "1", source]
    with driven(command, log, threads=1) as running:
        assert [running.lap()["accuracy"] for _ in range(2)] == [0.1, 0.2]
    said = dict(line.split(" ", 1) for line in log.read_text().splitlines())
    with np.load(path) as file:
        rows = file["train/3"]
        assert said["samples"] == f"{(len(rows), 3, 32, 32)} {file['y'][rows].tolist()}"
        weight = file["model/extractor.conv2.weight"].sum()
    assert float(said["weight"]) == pytest.approx(weight, abs=1e-3)
    assert said["options"] == options
    found = {path for path in source.rglob("*") if path.is_file()}
    assert found == {source / under / name for name in files}, "the checkout has changed"
