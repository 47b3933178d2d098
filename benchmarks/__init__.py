"""The measuring stick: pfl-bench beside the usual simulator and beside the bare loop.

`scripts/bench` runs it. Nothing here is part of the package, and the package imports nothing of it.
"""
