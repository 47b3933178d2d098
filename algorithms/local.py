"""Local: every client trains alone and nothing is sent. The row to beat for sharing to pay."""

from __future__ import annotations

from pfl_bench.engine import Algorithm


class Local(Algorithm):
    title = "Local"
    group = "paper"
    summary = "Each client trains a model of its own on its own data; nothing is shared."
    citation = "no paper: the baseline without federation"
    scored_model = "the client's own model"
    shared = ()
    personal = ("extractor", "head")
