"""The package as it is installed: its version, which the build reads from here and which therefore
needs nothing else, and the command that adds an optional extra.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

VERSION = "0.2.0"

_ROOT = Path(__file__).resolve().parents[2]


def install_command(extra: str, root: Path = _ROOT) -> str:
    """For the Python that runs this; where the package came from a clone, from that and not from a
    package index."""
    if (root / "pyproject.toml").is_file():
        what = ["-e", f"{root}[{extra}]"]
    elif (clone := _installed_from(root)) is not None:
        what = [f"{clone}[{extra}]"]
    else:
        what = [f"pfl-bench[{extra}]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *what])


def _installed_from(root: Path) -> Path | None:
    """The folder that pip noted to have installed the package from, if it is there still."""
    try:
        (found,) = distributions(name="pfl-bench", path=[str(root)])
        url = urlsplit(json.loads(found.read_text("direct_url.json") or "{}")["url"])
    except (ValueError, KeyError, TypeError, OSError):
        return None
    folder = Path(unquote(url.path))
    return folder if url.scheme == "file" and (folder / "pyproject.toml").is_file() else None
