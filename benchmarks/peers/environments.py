"""A Python environment for each peer, set up once. Where it has no torch of its own, it takes ours:
the same build for everyone, and no second download."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pfl_bench.base import UserError


@dataclass(frozen=True)
class Peer:
    """Another simulator: what to install, the driver, and what it does differently."""

    name: str
    requirements: tuple[str, ...]
    driver: str
    differs: str
    methods: Mapping[str, str] = field(default_factory=lambda: {"fedavg": ""})
    """Ours that its driver runs, and what else differs in each."""
    source: str = ""
    """A file by which a checkout is known, if the package index does not have the peer."""

    @property
    def option(self) -> str:
        """How a folder with its source is named."""
        return "--" + self.driver.replace("_", "-")

    def differs_in(self, method: str) -> str:
        return "; ".join(words for words in (self.differs, self.methods[method]) if words)

    def checkout(self, folder: Path) -> Path:
        """`folder`, in which the peer's source has to be."""
        if not (folder / self.source).is_file():
            raise UserError(
                f"{str(folder)!r} is no checkout of {self.name}: it has no file {self.source}"
            )
        return folder.resolve()


LOSS_TOO = "scores training samples too"

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
    Peer(
        "PFLlib",
        ("h5py", "scikit-learn", "matplotlib"),
        "pfllib",
        "clients one after the other; reads a client's file again for every use; scores in batches "
        "of ten",
        {
            "fedavg": LOSS_TOO,
            "fedprox": LOSS_TOO,
            "perfedavg": "every client trains twice a round; its training loss takes steps too",
            "pfedme": f"{LOSS_TOO}; a weight decay of 0.001; scores the global model, because its "
            "personal parameters are overwritten",
            "fedamp": f"{LOSS_TOO}; its tie to the mixture is worked out, without a gradient",
            "ditto": f"{LOSS_TOO}, and the global model besides",
            "fedper": LOSS_TOO,
            "fedrep": f"{LOSS_TOO}; head epochs run the extractor every time",
            "fedrod": LOSS_TOO,
            "fedfomo": f"{LOSS_TOO}; does not shuffle",
            "fedphp": f"{LOSS_TOO}; runs the extractor twice a step",
            "fedcp": "draws the policy with Gumbel noise",
            "local": LOSS_TOO,
        },
        "system/flcore/servers/serverbase.py",
    ),
    Peer(
        "FL-bench",
        ("hydra-core", "ray", "rich", "pandas", "pillow", "scikit-learn", "pynvml", "torchvision"),
        "fl_bench",
        "clients one after the other; keeps an incomplete last batch; scores in batches of ten",
        {
            "fedavg": "",
            "fedprox": "its tie is to the model that it trains, hence zero",
            "perfedavg": "scored after an epoch of fine-tuning; clients weigh alike",
            "pfedme": "",
            "ditto": "",
            "fedper": "",
            "fedrep": "head epochs run the whole network, backwards too",
            "fedrod": "",
            "fedfomo": "",
            "local": "",
        },
        "src/utils/functional.py",
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
