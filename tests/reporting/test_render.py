"""Rendering: every format says the same, and what must not be shown is not."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fakeplans import PROFILE, cell_plan, stored, stored_rounds, table_plan
from rich.console import Console
from toy import toy_config

from pfl_bench.base import plot_style
from pfl_bench.base.errors import UserError
from pfl_bench.plugins.registry import method_facts
from pfl_bench.reporting.tables import plot
from pfl_bench.reporting.tables.caption import command, facts
from pfl_bench.reporting.tables.content import lay_out, signed
from pfl_bench.reporting.tables.files import to_csv, write_all
from pfl_bench.reporting.tables.latex import to_latex
from pfl_bench.reporting.tables.markdown import to_markdown
from pfl_bench.reporting.tables.plan import CellPlan, TablePlan
from pfl_bench.reporting.tables.spec import Cell, Published
from pfl_bench.reporting.tables.terminal import to_terminal

FORMATS = ("terminal", "markdown", "latex", "csv")


def _terminal(plan: TablePlan, width: int = 200) -> str:
    out = io.StringIO()
    to_terminal(lay_out(plan), Console(file=out, width=width, highlight=False))
    return out.getvalue()


def _rendered(plan: TablePlan, kind: str) -> str:
    render = {"markdown": to_markdown, "latex": to_latex, "csv": to_csv, "terminal": _terminal}
    return render[kind](lay_out(plan)) if kind != "terminal" else _terminal(plan)


def _plan(source: str = "real", **spec: object) -> TablePlan:
    """Two columns; FedCP leads in the first, FedAvg diverges and Per-FedAvg is skipped."""
    config = toy_config(source=source)
    lost = [stored(config, None, "diverged", reason="the loss of client 3 is nan in round 2"), None]
    short = [stored(config, None, "skipped", reason="client 7 has less than two batches"), None]
    cells = [
        cell_plan(("FedAvg", "N=10|50"), [40.0, 42.0], Published(43.21, 0.2), source=source),
        cell_plan(("FedAvg", "β_2"), [0, 0], Published(31.0), source=source, runs=lost),
        cell_plan(
            ("Per-FedAvg", "N=10|50"), [0, 0], Published(status="skipped"), source=source,
            runs=short, impossible="client 7 has less than two batches",
        ),
        cell_plan(("Per-FedAvg", "β_2"), [None, None], Published(32.5), source=source),
        cell_plan(("FedCP", "N=10|50"), [51.0, 53.0], Published(50.12, 0.3), source=source),
        cell_plan(("FedCP", "β_2"), [61.0, None], Published(status="diverged"), source=source),
    ]  # fmt: skip
    return table_plan(cells, seeds=2, method="FedCP", rules=frozenset({"FedCP"}), **spec)


def _csv(plan: TablePlan) -> dict[tuple[str, str], dict[str, str]]:
    return {
        (line["row"], line["column"]): line
        for line in csv.DictReader(io.StringIO(to_csv(lay_out(plan))))
    }


def test_a_cell_is_mean_std_and_number_of_seeds() -> None:
    entry = lay_out(_plan()).entries["FedAvg", "N=10|50"]
    assert entry.text == "41.00 ± 1.41"  # the sample deviation of 40 and 42 is √2


def test_data_that_are_not_as_published_are_told_in_every_caption() -> None:
    config = toy_config(dataset="cifar10")
    other = dataclasses.replace(config, seed=1)
    runs = [stored(config, 40.0), stored(other, 42.0, data="JPEG copy")]
    cell = cell_plan(("FedAvg", "only"), [40.0, 42.0], runs=runs)
    plan = table_plan([dataclasses.replace(cell, configs=(config, other))], seeds=2)
    assert facts(plan)["Data"].startswith("Cifar10 (JPEG copy), all of it")
    for kind in ("terminal", "markdown", "latex"):
        assert "Cifar10 (JPEG copy)" in _rendered(plan, kind)
    assert "Cifar10: JPEG copy" in plot.draw(lay_out(plan)).get_suptitle()


def test_one_seed_has_no_deviation_and_missing_seeds_are_told() -> None:
    entry = lay_out(_plan()).entries["FedCP", "β_2"]
    assert entry.text == "61.00 (1 of 2)"


def test_beside_a_figure_on_real_data_stands_the_paper_s_and_the_difference() -> None:
    entries = lay_out(_plan()).entries
    assert entries["FedAvg", "N=10|50"].beside == "paper 43.21, −2.21"
    assert entries["FedCP", "N=10|50"].beside == "paper 50.12, +1.88"
    assert entries["Per-FedAvg", "β_2"].beside == "paper 32.50"
    assert entries["FedCP", "β_2"].beside == "paper: diverged"


def test_on_stand_ins_only_ranks_are_shown() -> None:
    entries = lay_out(_plan("standin")).entries
    assert entries["FedAvg", "N=10|50"].beside == "rank 2, paper 2"
    assert entries["FedCP", "N=10|50"].beside == "rank 1, paper 1"
    assert entries["Per-FedAvg", "β_2"].beside == ""


@pytest.mark.parametrize("kind", FORMATS)
def test_no_format_shows_the_paper_s_figure_or_a_difference_on_stand_ins(kind: str) -> None:
    text = _rendered(_plan("standin"), kind)
    for figure in ("43.21", "50.12", "32.5", "2.21", "1.88"):
        assert figure not in text


def test_ranks_count_only_what_both_have() -> None:
    plan = table_plan(
        [
            cell_plan(("FedAvg", "c"), [40.0], Published(2.0), source="standin"),
            cell_plan(("Local", "c"), [50.0], source="standin"),
            cell_plan(("FedCP", "c"), [60.0], Published(1.0), source="standin"),
        ]
    )
    entries = lay_out(plan).entries
    assert entries["FedAvg", "c"].beside == "rank 2, paper 1"
    assert entries["Local", "c"].ranks is None


@pytest.mark.parametrize("kind", FORMATS)
def test_not_run_skipped_and_diverged_are_told_apart_with_their_reasons(kind: str) -> None:
    text = _rendered(_plan(), kind)
    for word in ("not run", "skipped", "diverged"):
        assert word in text
    assert "the loss of client 3 is nan in round 2" in text
    assert "client 7 has less than two batches" in text


def test_a_reason_said_twice_is_one_footnote() -> None:
    config = toy_config()
    runs = [stored(config, None, "skipped", reason="too few batches")]
    cells = [cell_plan((row, "c"), [0], runs=runs, impossible="too few batches") for row in "xy"]
    content = lay_out(table_plan(cells))
    assert content.footnotes == {"a": "skipped: too few batches"}
    assert [entry.mark for entry in content.entries.values()] == ["a", "a"]


def test_the_best_of_each_line_is_bold_and_no_other() -> None:
    plan = _plan()
    assert re.findall(r"\\textbf\{([\d.]+)", to_latex(lay_out(plan))) == ["52.00"]
    assert re.findall(r"\*\*(\d[\d.]+) ", to_markdown(lay_out(plan))) == ["52.00"]


def test_where_columns_compete_the_best_of_each_row_is_bold() -> None:
    cells = [cell_plan((row, column), [float(value)]) for row, column, value in
             (("a", "x", 1), ("a", "y", 2), ("b", "x", 4), ("b", "y", 3))]  # fmt: skip
    best = {p for p, e in lay_out(table_plan(cells, compared="columns")).entries.items()
            if e.is_best}  # fmt: skip
    assert best == {("a", "y"), ("b", "x")}


def test_equals_share_the_first_place_and_a_line_of_equals_has_none() -> None:
    cells = [
        cell_plan((row, "x"), [value]) for row, value in zip("abc", (5.0, 5.0, 1.0), strict=True)
    ]
    cells += [cell_plan((row, "y"), [5.0]) for row in "abc"]
    best = {p for p, e in lay_out(table_plan(cells)).entries.items() if e.is_best}
    assert best == {("a", "x"), ("b", "x")}


def test_the_csv_holds_unrounded_figures_that_give_the_table_again() -> None:
    lines = _csv(_plan())
    line = lines["FedAvg", "N=10|50"]
    assert float(line["mean"]) == pytest.approx(41.0)
    assert float(line["std"]) == pytest.approx(2**0.5)
    assert float(line["difference"]) == pytest.approx(41 - 43.21)
    assert (line["status"], line["seeds"], line["source"]) == ("done", "2", "real")
    assert lines["FedAvg", "β_2"]["mean"] == ""
    assert lines["Per-FedAvg", "N=10|50"]["status"] == "skipped"


def test_latex_escapes_what_latex_reads_as_commands() -> None:
    text = to_latex(lay_out(_plan(caption="50 % of λ & more_or_less {x}")))
    assert r"50 \% of $\lambda$ \& more\_or\_less \{x\}" in text
    assert r"$\beta$\_2" in text
    code = [line for line in text.partition(r"\toprule")[0].splitlines() if line[:1] != "%"]
    assert "--" not in "".join(code)
    shown = "".join(line for line in text.splitlines() if line[:1] != "%")
    assert not re.search(r"[βλρτ±−|]", shown)


def test_the_caption_in_latex_is_short_and_a_comment_has_the_details() -> None:
    content = lay_out(_plan())
    lines = to_latex(content).splitlines()
    (caption,) = [line for line in lines if r"\caption" in line]
    assert len(caption) < 200 and "Mean $\\pm$ standard deviation over 2 seeds" in caption
    for name in content.facts:
        assert any(line.startswith(f"% {name}: ") for line in lines)


def test_what_a_method_computes_beyond_the_others_stands_where_its_score_does() -> None:
    more = cell_plan(("FedRep", "x"), [50.0, 52.0])
    terms = method_facts("fedrep", "cnn", {"head_epochs": 3})
    more = replace(more, configs=tuple(replace(config, **terms) for config in more.configs))
    content = lay_out(table_plan([more, cell_plan(("FedAvg", "x"), [40.0, 41.0])], seeds=2))
    marks = {row: entry.mark for (row, _), entry in content.entries.items()}
    assert marks == {"FedRep": "a", "FedAvg": None}
    assert "head alone for 3 epochs" in content.footnotes["a"]


def test_the_heat_map_has_deviations_and_no_title_where_that_is_asked_for(tmp_path: Path) -> None:
    content = lay_out(_plan())
    for look, shown in ((plot.Look(), "52.00"), (plot.Look(with_std=True), "52.00 ± 1.41")):
        words = [text.get_text() for text in plot.draw(content, look).axes[0].texts]
        assert shown in words
    figure = plot.draw(content)
    assert figure.get_suptitle()
    plot_style.save(figure, tmp_path / "x.png", titled=False)
    assert not figure.get_suptitle()


def test_latex_keeps_a_dash_a_dash_and_knows_the_letters_of_quantities() -> None:
    text = to_latex(lay_out(_plan(caption="from 1–2 by --option, μ and η")))
    assert r"from 1--2 by -{}-option, $\mu$ and $\eta$" in text


def test_figures_stay_whole_under_a_heading_of_long_words() -> None:
    names = [f"pathological number {k}" for k in range(9)]
    plan = table_plan([cell_plan(("FedAvg", name), [40.0, 42.0]) for name in names], seeds=2)
    text = _terminal(plan, 120)
    assert text.count("41.00 ± 1.41") == 9


def test_a_run_too_short_for_a_score_is_told_in_a_footnote() -> None:
    plan = table_plan([cell_plan(("FedAvg", "x"), [40.0])])
    late = plan.retold(plan.spec.scored("late"))
    assert lay_out(late).footnotes == {"a": "no value: it takes at least 20 scored rounds"}


def test_every_latex_line_of_cells_has_as_many_columns_as_the_head() -> None:
    plan = _plan(groups={"N=10|50": "drawn"})
    body = to_latex(lay_out(plan)).partition(r"\toprule")[2].partition(r"\bottomrule")[0]
    for line in body.splitlines():
        if line.endswith(r"\\"):
            spans = [int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            assert len(re.findall(r"(?<!\\)&", line)) + sum(spans) == len(plan.spec.columns)


def test_latex_has_a_rule_above_the_rows_that_ask_for_one() -> None:
    lines = [line.strip() for line in to_latex(lay_out(_plan())).splitlines()]
    row = next(k for k, line in enumerate(lines) if line.startswith("FedCP &"))
    assert lines[row - 1] == r"\midrule"


def test_columns_of_one_group_stand_under_one_heading() -> None:
    cells = [cell_plan(("a", name), [1.0]) for name in ("p x", "p y", "z")]
    text = to_latex(lay_out(table_plan(cells, groups={"p x": "p", "p y": "p"})))
    assert r"\multicolumn{2}{c}{p}" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert r" & x & y & z \\" in text


def test_every_markdown_line_has_as_many_cells_as_the_head() -> None:
    table = [line for line in to_markdown(lay_out(_plan())).splitlines() if line.startswith("|")]
    counts = [len(re.findall(r"(?<!\\)\|", line)) for line in table]
    assert set(counts[:5]) == {4}
    assert len(set(counts[5:])) == 1


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_terminal_shows_every_cell_whole_at_any_width(width: int) -> None:
    plan = _plan()
    text = _terminal(plan, width)
    for entry in lay_out(plan).entries.values():
        assert entry.text in text
        assert entry.beside in text
    assert all(len(line) <= width for line in text.splitlines())


@pytest.mark.parametrize("kind", ["terminal", "markdown", "latex"])
def test_the_caption_says_how_the_table_was_made(kind: str) -> None:
    text = " ".join(_rendered(_plan("standin"), kind).replace("-{}-", "--").split())
    said = ("A toy table.", "quick", "stand-in", "3 rounds", "best round", "pfl-bench 0.1.0")
    for fact in (*said, "torch 2.9.0", "2024-05-06", "table toy --profile quick --seeds 2"):
        assert fact in text


def test_the_command_names_an_own_profile_by_its_file() -> None:
    profile = dataclasses.replace(PROFILE, name="mine", argument="my profiles/mine.yml")
    plan = dataclasses.replace(_plan("standin"), profile=profile)
    assert command(plan).endswith("--profile 'my profiles/mine.yml' --seeds 2")


def test_real_data_under_a_profile_of_stand_ins_needs_its_folder_in_the_command() -> None:
    assert command(_plan("real")).endswith("--profile quick --seeds 2 --data-dir DIR")
    assert command(_plan("standin")).endswith("--profile quick --seeds 2")


def test_an_own_profile_of_stand_ins_needs_the_folder_of_real_data_too() -> None:
    profile = dataclasses.replace(PROFILE, name="mine", argument="mine.yml")
    plan = dataclasses.replace(_plan("real"), profile=profile)
    assert command(plan).endswith("--profile mine.yml --seeds 2 --data-dir DIR")
    real = dataclasses.replace(profile, run={"source": "real"})
    assert command(dataclasses.replace(plan, profile=real)).endswith("--seeds 2")


@pytest.mark.parametrize(
    ("source", "told"), [("standin", "toy (stand-in), "), ("pfllib", "toy (PFLlib), ")]
)
def test_data_are_called_what_they_are_called_everywhere(source: str, told: str) -> None:
    assert facts(_plan(source))["Data"].startswith(f"{told}all of it, ")


def small_plan() -> TablePlan:
    """A table trained with small models, each at its size."""
    trained = {"x": ("cnn_small", 8), "y": ("cnn_small", 6), "z": ("resnet_small", 8)}
    cells = []
    for column, (model, size) in trained.items():
        made = cell_plan(("A", column), [50.0, 51.0])
        configs = tuple(
            dataclasses.replace(config, model=model, image_size=size) for config in made.configs
        )
        cells.append(dataclasses.replace(made, configs=configs))
    return table_plan(cells)


SMALL_MODELS = (
    "small CNN on images of 8×8 and 6×6 in the place of the 4-layer CNN; small ResNet on images of "
    "8×8 in the place of the ResNet-18"
)


def test_a_table_says_which_models_stand_for_the_papers_and_at_which_size() -> None:
    told = facts(small_plan())
    assert told["Models"] == SMALL_MODELS
    assert "small CNN at 6×6, " in told["Data"]
    assert SMALL_MODELS in " ".join(plot.draw(lay_out(small_plan())).get_suptitle().split())


def test_a_table_of_the_papers_models_does_not_speak_of_others() -> None:
    assert "Models" not in facts(_plan())


def test_versions_are_told_of_all_runs() -> None:
    config = toy_config()
    old = stored(config, 1.0, provenance={"torch": "2.4.0", "finished": "2023-01-01T00:00:00"})
    plan = table_plan([cell_plan(("a", "b"), [1.0, 1.0], runs=[old, stored(config, 1.0)])])
    assert "torch 2.4.0" in facts(plan)["Versions"]
    assert "torch 2.9.0" in facts(plan)["Versions"]
    assert facts(plan)["Date"] == "2024-05-06"


def test_the_agreement_says_the_smallest_p_its_seeds_allow() -> None:
    assert "+11.00 to FedAvg, p = 0.5 (n = 2, at best 0.5)" in _terminal(_plan())


def test_a_table_without_published_figures_does_not_speak_of_the_paper() -> None:
    cells = [cell_plan((row, "c"), [value]) for row, value in (("mine", 60.0), ("other", 50.0))]
    plan = table_plan(cells, seeds=1, method="mine")
    for text in (_terminal(plan), to_markdown(lay_out(plan)), to_latex(lay_out(plan))):
        assert "paper" not in text
    assert "+10.00 to other, p = 1 (n = 1, at best 1)" in _terminal(plan)


def test_a_difference_that_rounds_to_zero_has_no_sign() -> None:
    assert [signed(v) for v in (0.004, -0.004, 0.5, -0.5)] == ["±0.00", "±0.00", "+0.50", "−0.50"]


def _overhead_plan(folder: Path) -> TablePlan:
    cells = []
    for algo in ("fedavg", "fedcp"):
        config = toy_config(algo, dataset="tinyimagenet", model="resnet18", source="standin")
        run = stored_rounds(folder, config, [100, 400, 400], [60.0] * 3, parameters_up=2_000_000)
        for measure in ("iterations", "parameters_up", "cpn_parameters"):
            published = Published(74.0) if measure == "iterations" else None
            cell = Cell(algo, measure, {"algo": algo}, {}, published, measure)
            cells.append(CellPlan(cell, (config,), (run,), None))
    return table_plan(cells, seeds=1, metric="overhead")


def test_overhead_shows_each_measure_in_its_own_unit(tmp_path: Path) -> None:
    entries = lay_out(_overhead_plan(tmp_path)).entries
    assert entries["fedavg", "iterations"].text == "2"
    assert entries["fedavg", "parameters_up"].text == "1,000,000"
    assert entries["fedavg", "cpn_parameters"].text == "–"
    assert entries["fedcp", "cpn_parameters"].text == "527,360"


def test_overhead_states_its_criterion_and_the_cpn_s_share(tmp_path: Path) -> None:
    text = to_markdown(lay_out(_overhead_plan(tmp_path)))
    assert "within 0.5 percentage points of the highest" in text
    assert "leave out the first iteration" in text
    assert "4.67 %" in text
    assert "4.68 %" in text


@pytest.mark.parametrize("shape", ["grid", "row", "nothing run", "overhead"])
def test_all_formats_are_written_whole(shape: str, tmp_path: Path) -> None:
    plan = {
        "grid": _plan,
        "row": lambda: table_plan([cell_plan(("a", c), [1.0, 2.0]) for c in "xyz"]),
        "nothing run": lambda: table_plan([cell_plan((r, c), [None]) for r in "ab" for c in "xy"]),
        "overhead": lambda: _overhead_plan(tmp_path / "runs"),
    }[shape]()
    paths = write_all(lay_out(plan), tmp_path / "out")
    assert [path.name for path in paths] == [
        f"toy{s}" for s in (".md", ".tex", ".csv", ".png", ".svg")
    ]
    assert paths[3].read_bytes().startswith(b"\x89PNG")
    assert paths[4].read_text().rstrip().endswith("</svg>")
    assert sorted((tmp_path / "out").iterdir()) == sorted(paths)


def test_a_table_drawn_twice_is_the_same_bytes(tmp_path: Path) -> None:
    first, second = (write_all(lay_out(_plan()), tmp_path / name) for name in "ab")
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


@pytest.mark.parametrize(
    ("seeds", "fraction", "said"),
    [
        ([50.0, 51.0, 52.0], 1.0, "3 seeds, real data"),
        ([50.0, None, None], 0.03, "1 of 3 seeds, 3 % of the real data"),
    ],
)
def test_a_picture_says_how_many_seeds_and_how_much_data_it_rests_on(
    seeds: list[float | None], fraction: float, said: str
) -> None:
    cells = []
    for place in (("A", "x"), ("A", "y"), ("B", "x"), ("B", "y")):
        made = cell_plan(place, seeds)
        configs = tuple(dataclasses.replace(c, fraction=fraction) for c in made.configs)
        cells.append(dataclasses.replace(made, configs=configs))
    title = plot.draw(lay_out(table_plan(cells, seeds=3))).get_suptitle()
    assert title.endswith(f"profile quick, {said}")


def test_a_profile_that_does_not_rank_prints_neither_ranks_nor_correlations_nor_p() -> None:
    plan = dataclasses.replace(_plan(), profile=dataclasses.replace(PROFILE, ranks=False))
    for text in (to_markdown(lay_out(plan)), to_latex(lay_out(plan)), to_csv(lay_out(plan))):
        assert "Kendall" not in text and "p = " not in text and "rank 1" not in text
    assert "does not tell which method is better" in to_markdown(lay_out(plan))
    assert "Kendall" in to_latex(lay_out(_plan()))


def test_intervals_stand_in_the_cells_and_are_explained_where_asked_for() -> None:
    cells = [cell_plan(("a", "x"), [50.0, 52.0, 54.0]), cell_plan(("b", "x"), [40.0])]
    plan = table_plan(cells)
    plain, asked = lay_out(plan), lay_out(plan.retold(plan.spec.with_intervals("seeds")))
    assert asked.entries["a", "x"].text == "52.00 ± 2.00 [50.00, 54.00]"
    assert asked.entries["b", "x"].text == "40.00"  # one seed has no interval
    assert "--interval seeds" in asked.facts["Command"]
    assert "percentile bootstrap over seeds" in to_markdown(asked)
    assert "interval_low" in to_csv(asked) and "interval_low" not in to_csv(plain)
    over_clients = plan.spec.with_intervals("clients")
    assert "bootstrap over clients" in facts(plan.retold(over_clients))["Intervals"]
    last = plan.retold(over_clients.scored("last"))
    assert facts(last)["Intervals"].startswith("none over clients")
    with pytest.raises(UserError, match="unknown interval 'seed'; did you mean 'seeds'"):
        plan.spec.with_intervals("seed")


def test_the_method_s_matches_stand_below_with_what_they_do_not_allow_for() -> None:
    cells = [
        cell_plan(("Mine", "x"), [50.0 + k for k in range(6)]),
        cell_plan(("Rival", "x"), [49.0 - k for k in range(6)]),
    ]
    plan = table_plan(cells, seeds=6, method="Mine")
    text = to_markdown(lay_out(plan))
    assert "### Mine against every other" in text
    assert "| Rival | 6 | 6 | 0 | +6.00 | 0.031 | 0.031 |" in text
    assert "It does not allow for dependence" in text
    silent = dataclasses.replace(plan, profile=dataclasses.replace(PROFILE, ranks=False))
    assert "Mine against every other" not in to_markdown(lay_out(silent))
