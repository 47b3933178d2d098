"""PFLlib, from a checkout: its servers run their own loop and wait after every score."""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from common import Laps, Problem, problem
from torch import nn
from torch_model import fill

SYSTEM = Path(sys.argv[3]) / "system"
DATASET = "Cifar10"


class Method(NamedTuple):
    module: str
    server: str
    scores: str = "evaluate"
    """What a round calls last before its clients train."""
    accuracies: str = "rs_test_acc"


METHODS = {
    "fedavg": Method("serveravg", "FedAvg"),
    "fedprox": Method("serverprox", "FedProx"),
    "perfedavg": Method("serverperavg", "PerAvg", "evaluate_one_step"),
    "pfedme": Method("serverpFedMe", "pFedMe", "evaluate_personalized", "rs_test_acc_per"),
    "fedamp": Method("serveramp", "FedAMP"),
    "ditto": Method("serverditto", "Ditto", "evaluate_personalized"),
    "fedper": Method("serverper", "FedPer"),
    "fedrep": Method("serverrep", "FedRep"),
    "fedrod": Method("serverrod", "FedROD"),
    "fedfomo": Method("serverfomo", "FedFomo"),
    "fedphp": Method("serverphp", "FedPHP"),
    "fedcp": Method("servercp", "FedCP"),
    "local": Method("serverlocal", "Local"),
}


def defaults() -> argparse.Namespace:
    """Every option of the checkout's command line, which is not the same in all versions: read from
    its source, where they stand under `if __name__ == "__main__"`."""
    parser = argparse.ArgumentParser()
    for node in ast.walk(ast.parse((SYSTEM / "main.py").read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "parser.add_argument":
            said = {k.arg: k.value for k in node.keywords if k.arg in ("default", "action", "dest")}
            literals = {name: ast.literal_eval(value) for name, value in said.items()}
            parser.add_argument(*map(ast.literal_eval, node.args), **literals)
    return parser.parse_args([])


def hyper(given: Problem) -> dict[str, float]:
    """Its names for our hyper-parameters."""
    ours = given.hyper
    match given.method:
        case "fedprox":
            return {"mu": ours["mu"]}
        case "pfedme":
            return {
                "lamda": ours["lam"],
                "K": ours["steps"],
                "p_learning_rate": ours["personal_lr"],
                "beta": ours["beta"],
            }
        case "fedamp":
            # Ours gives α_k as a share of the largest and λ over it; theirs α_k and λ themselves.
            alpha = ours["alpha"] * ours["sigma"] / max(1, len(given.clients) - 1)
            return {"sigma": ours["sigma"], "alphaK": alpha, "lamda": ours["lam"] * alpha}
        case "ditto":
            return {"mu": ours["mu"], "plocal_epochs": ours["personal_epochs"]}
        case "fedrep":
            return {"plocal_epochs": ours["head_epochs"]}
        case "fedfomo":
            return {"M": ours["others"]}
        case "fedphp":
            return {"mu": ours["mu"], "lamda": ours["lam"]}
        case "fedcp":
            return {"lamda": ours["lam"]}
    return {}


def deal(given: Problem, folder: Path) -> None:
    """A file for each client, compressed as by PFLlib's own generators."""
    for part, clients in (("train", given.train), ("test", given.test)):
        target = folder / "dataset" / DATASET / part
        target.mkdir(parents=True)
        for k, rows in enumerate(clients):
            x, y = given.of(rows)
            np.savez_compressed(target / f"{k}.npz", data={"x": x, "y": y})


def in_turns(score: Callable[..., None], accuracy: Callable[[], float], laps: Laps):
    """`score`, which ends a lap and waits for the next one to be asked for."""
    scored = 0

    def turn(*arguments) -> None:
        nonlocal scored
        score(*arguments)
        if scored:
            laps.finish(accuracy())
        else:
            laps.ready()
        scored += 1
        laps.wait()

    return turn


def main() -> None:
    laps, given = Laps(), problem()
    method = METHODS[given.method]
    folder = Path(sys.argv[1]).parent / "pfllib"
    deal(given, folder)
    (folder / "system").mkdir()
    os.chdir(folder / "system")  # it looks for its data beside the folder that it runs in
    sys.dont_write_bytecode = True  # the checkout is the user's
    sys.path.insert(0, str(SYSTEM))
    models = importlib.import_module("flcore.trainmodel.models")
    module = importlib.import_module(f"flcore.servers.{method.module}")
    model = fill(models.FedAvgCNN(in_features=3, num_classes=10, dim=1600), given)
    head, model.fc = copy.deepcopy(model.fc), nn.Identity()
    settings = {
        "algorithm": method.server,
        "dataset": DATASET,
        "num_classes": 10,
        "device": "cpu",
        "model": models.BaseHeadSplit(model, head),
        "head": head,
        "num_clients": len(given.clients),
        "batch_size": given.batch_size,
        "local_learning_rate": given.lr,
        "global_rounds": given.rounds,
    }
    arguments = argparse.Namespace(**(vars(defaults()) | settings | hyper(given)))
    server = getattr(module, method.server)(arguments, 0)
    score = in_turns(
        getattr(server, method.scores), lambda: getattr(server, method.accuracies)[-1], laps
    )
    setattr(server, method.scores, score)
    server.train()


main()
