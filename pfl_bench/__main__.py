"""`python -m pfl_bench` is the command line too."""

from pfl_bench.cli import main

main(prog_name="pfl-bench")
