"""FL-bench, from a checkout: its servers run their own loop in its serial mode."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from pathlib import Path

import torch
from common import Laps, Problem, problem
from torch_model import fill

SOURCE = Path(sys.argv[3])
DATASET, MODEL = "cifar10", "avgcnn"


def hyper(given: Problem) -> dict[str, float]:
    """Its names for our hyper-parameters."""
    ours = given.hyper
    match given.method:
        case "fedprox":
            return {"mu": ours["mu"]}
        case "perfedavg":
            return {"beta": given.lr if ours["beta"] is None else ours["beta"]}
        case "pfedme":
            return {
                "lamda": ours["lam"],
                "k": ours["steps"],
                "pers_lr": ours["personal_lr"],
                "beta": ours["beta"],
                "mu": 0.0,
            }
        case "ditto":
            return {"lamda": ours["mu"], "pers_epoch": ours["personal_epochs"]}
        case "fedfomo":
            return {"M": ours["others"], "valset_ratio": ours["validation"]}
    return {}


def settings(given: Problem) -> dict[str, object]:
    """What its configuration file would say."""
    return {
        "method": given.method,
        "mode": "serial",
        "dataset": {"name": DATASET},
        "model": {"name": MODEL, "use_torchvision_pretrained_weights": False},
        "optimizer": {"name": "sgd", "lr": given.lr},
        "common": {
            "join_ratio": 1.0,
            "global_epoch": given.rounds,
            "local_epoch": 1 + given.hyper.get("head_epochs", 0),  # it counts both phases
            "batch_size": given.batch_size,
            "client_side_evaluation": False,
            "test": {"client": {"interval": 1, "finetune_epoch": int(given.method == "perfedavg")}},
            "verbose_gap": given.rounds + 1,
            "use_cuda": False,
            "save_log": False,
            "save_learning_curve_plot": False,
            "save_metrics": False,
        },
        given.method: hyper(given),
    }


def deal(given: Problem, folder: Path) -> None:
    """The partition where it looks for one."""
    folder.mkdir(parents=True)
    everyone = list(given.clients)
    partition = {
        "separation": dict.fromkeys(("train", "val", "test"), everyone) | {"total": len(everyone)},
        "data_indices": [
            {"train": train.tolist(), "val": [], "test": test.tolist()}
            for train, test in zip(given.train, given.test, strict=True)
        ],
    }
    (folder / "args.json").write_text(json.dumps({}))
    (folder / "partition.pkl").write_bytes(pickle.dumps(partition))


def put_in_place(given: Problem, folder: Path, base) -> None:
    """Our samples, scaled by its own transform, and our initial values, in its registries."""
    deal(given, folder / "data" / DATASET)
    base.FLBENCH_ROOT = folder
    x, y = torch.from_numpy((given.x + 1) / 2), torch.from_numpy(given.y)
    base.DATASETS[DATASET] = lambda root, args, **transforms: base.BaseDataset(
        data=x, targets=y, classes=list(range(10)), **transforms
    )
    base.DATA_MEAN[DATASET] = base.DATA_STD[DATASET] = [0.5, 0.5, 0.5]
    cnn = base.MODELS[MODEL]
    base.MODELS[MODEL] = lambda **arguments: fill(cnn(**arguments), given)


def main() -> None:
    laps, given = Laps(), problem()
    sys.dont_write_bytecode = True  # the checkout is the user's
    sys.path.insert(0, str(SOURCE))
    folder = Path(sys.argv[1]).parent / "fl-bench"
    put_in_place(given, folder, importlib.import_module("src.server.fedavg"))
    configuration = importlib.import_module("omegaconf").OmegaConf.create
    # Its servers ask Hydra, which has not started them, where to write.
    hydra = importlib.import_module("hydra.core.hydra_config").HydraConfig.instance()
    hydra.cfg = configuration({"hydra": {"runtime": {"output_dir": str(folder)}}})
    module = importlib.import_module(f"src.server.{given.method}")
    kind = next(v for k, v in vars(module).items() if k.lower() == f"{given.method}server")
    parse = importlib.import_module("src.utils.functional").parse_args
    own = getattr(kind, "get_hyperparams", None)
    server = kind(args=parse(configuration(settings(given)), given.method, own))
    score = server.test_client_models
    stage = "after" if given.method == "perfedavg" else "before"

    def turn() -> None:
        score()
        found = server.test_results.pop(server.current_epoch + 1)["all_clients"]
        laps.finish(found[stage]["test"].accuracy / 100)
        laps.wait()

    server.test_client_models = turn
    laps.ready()
    laps.wait()
    server.train()


main()
