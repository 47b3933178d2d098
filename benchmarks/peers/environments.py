"""A Python environment for each peer, set up once. Where it has no torch of its own, it takes ours:
the same build for everyone, and no second download."""

from __future__ import annotations

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Peer:
    """Another simulator: what to install, the driver, and what it does differently."""

    name: str
    requirements: tuple[str, ...]
    driver: str
    differs: str


PEERS = (
    Peer(
        "pfl-research",
        ("pfl",),
        "pfl_research",
        "one process; does not shuffle, keeps an incomplete last batch; clients weigh alike",
    ),
    Peer(
        "Flower",
        ("flwr[simulation]",),
        "flower",
        "clients are jobs of Ray's processes, whose time and memory are not counted here; the "
        "model travels as bytes",
    ),
    Peer("fluke", ("fluke-fl",), "fluke_fl", "keeps an incomplete last batch"),
    Peer(
        "FedJAX",
        # Its last release calls what later ones of JAX have removed, and this one what numpy has.
        (
            "fedjax",
            "jax==0.4.25",
            "jaxlib==0.4.25",
            "dm-haiku==0.0.12",
            "numpy<2",
            "ml-dtypes<0.5",
            "scipy<1.14",
        ),
        "fedjax_fedavg",
        "compiled by XLA; threads are XLA's own choice",
    ),
)


def python_of(peer: Peer, folder: Path) -> Path:
    """The interpreter of a peer's environment, which is set up if it is not there yet."""
    home = folder / peer.driver
    python, stamp = home / "bin" / "python", home / "ready"
    wanted = "\n".join(peer.requirements)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    venv.create(home, with_pip=True, clear=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = home / "lib" / version / "site-packages"
    (site / "torch_of_pfl_bench.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    command = [python, "-m", "pip", "install", "--quiet", *peer.requirements]
    subprocess.run(command, check=True, capture_output=True, text=True)
    stamp.write_text(wanted)
    return python
