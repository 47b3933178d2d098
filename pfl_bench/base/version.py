"""The package as it is installed: its version, which the build reads from here and which therefore
needs nothing else, and the command that adds an optional extra.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

VERSION = "0.2.0"

_ROOT = Path(__file__).resolve().parents[2]


def install_command(extra: str, root: Path = _ROOT) -> str:
    """For the Python that runs this; from a clone, the clone itself and not a package index."""
    is_clone = (root / "pyproject.toml").is_file()
    what = ["-e", f"{root}[{extra}]"] if is_clone else [f"pfl-bench[{extra}]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *what])
