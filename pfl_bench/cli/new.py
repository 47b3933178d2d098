"""`pfl-bench new`: a plugin that works at once, and its test.

The text of both is in pfl_bench/templates.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
from importlib import resources
from pathlib import Path
from string import Template

import click

from pfl_bench.base import UserError, shown, user_path, write_atomically

LONGEST_NAME = 80


@click.command()
@click.argument("name")
@click.option("--out", default=".", metavar="DIR", help="Where to write (default: here).")
def new(name: str, out: str) -> None:
    """Write an algorithm of your own: NAME.py, which works at once, and test_NAME.py."""
    _check_name(name)
    folder = user_path(out)
    plugin, test = folder / f"{name}.py", folder / f"test_{name}.py"
    _check_absent(plugin, test)
    _check_hides_nothing(name)
    title = "".join(word.capitalize() for word in name.split("_"))
    try:
        write_atomically(plugin, _filled("plugin.py.txt", name, title))
        write_atomically(test, _filled("test_plugin.py.txt", name, title))
    except OSError as error:
        raise UserError(f"cannot write to {str(folder)!r}: {error.strerror}") from error
    command = shlex.join(["pfl-bench", "run", "--algo", name, "--plugin", str(plugin)])
    click.echo(f"Wrote {plugin} and {test}, which work as they are:")
    click.echo(f"  {command}")
    click.echo(f"  {shlex.join(['pytest', str(test)])}")


def _check_name(name: str) -> None:
    from pfl_bench.plugins import algorithm_names

    if not re.fullmatch(f"[a-z][a-z0-9_]{{,{LONGEST_NAME - 1}}}", name) or keyword.iskeyword(name):
        raise UserError(
            f"an algorithm cannot be called {shown(name)}; allowed: lower-case letters, digits and "
            f"underscores, with a letter first, at most {LONGEST_NAME}, and no keyword of Python"
        )
    if name in algorithm_names():
        raise UserError(f"the name {name!r} is taken; so are: {', '.join(algorithm_names())}")


def _check_absent(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise UserError(f"the file {str(path)!r} exists; choose another name or another --out")


def _check_hides_nothing(name: str) -> None:
    """pytest puts a test's folder first on the import path, where NAME.py would be found."""
    if importlib.util.find_spec(name) is not None:
        raise UserError(
            f"an algorithm cannot be called {name!r}: the file {name}.py would hide the Python "
            "module of that name"
        )


def _filled(template: str, name: str, title: str) -> str:
    text = (resources.files("pfl_bench.plugins") / "templates" / template).read_text(
        encoding="utf-8"
    )
    return Template(text).substitute(name=name, title=title)
