"""The command line: commands live in the modules beside this one and import torch when they run."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from pfl_bench.base import (
    VERSION,
    UserError,
    guarded,
    heed_no_more,
    is_out_of_memory,
    reason,
    terminable,
)
from pfl_bench.cli.compare import compare
from pfl_bench.cli.data import data
from pfl_bench.cli.describe import list_, show
from pfl_bench.cli.doctor import doctor
from pfl_bench.cli.figure import figure
from pfl_bench.cli.new import new
from pfl_bench.cli.partition import partition
from pfl_bench.cli.removal import prune, rm
from pfl_bench.cli.report import report
from pfl_bench.cli.results import results
from pfl_bench.cli.run import INTERRUPTED, run
from pfl_bench.cli.table import table
from pfl_bench.cli.tune import tune


class Commands(click.Group):
    """Prints a user's mistake as one sentence, whichever command it happened in."""

    def invoke(self, context: click.Context) -> Any:
        try:
            with terminable():
                return super().invoke(context)
        except UserError as error:
            click.echo(f"Error: {error}", err=True)
            context.exit(2)
        except OSError as error:  # what no command foresaw: no permission, a disk that is gone
            click.echo(f"Error: {error}", err=True)
            context.exit(2)
        except (MemoryError, RuntimeError, ImportError) as error:
            if not is_out_of_memory(error):
                raise
            click.echo(f"Error: the memory does not suffice ({reason(error)})", err=True)
            context.exit(2)
        except KeyboardInterrupt:
            heed_no_more()
            click.echo("Stopped. The same command continues where it left off.", err=True)
            context.exit(INTERRUPTED)

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Everything that is printed, also on a mistaken command line, passes one filter."""
        with guarded():
            try:
                return super().main(*arguments, **options)
            except OSError as error:  # help or version, printed before there is a command
                click.echo(f"Error: {error}", err=True)
                sys.exit(2)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="pfl-bench")
def main() -> None:
    """Benchmark personalized federated learning: deterministic, resumable, beside the paper.

    \b
    pfl-bench run --algo fedavg --setting practical --beta 0.1
    pfl-bench table main
    pfl-bench list algos
    """
    _show_notices()


def _show_notices() -> None:
    """Let the package say on stderr what takes a while; nothing of other libraries."""
    log = logging.getLogger("pfl_bench")
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)


data.add_command(partition)
for command in (rm, prune):
    results.add_command(command)
for command in (run, table, tune, figure, list_, show, data, results, report, compare, new, doctor):
    main.add_command(command)
