"""What the figures read from records, and that what they draw is true, whole and legible."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from fakeplans import cell_plan, table_plan
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text
from toy import toy_config

from pfl_bench.algorithms.figures import policy
from pfl_bench.base import plot_style
from pfl_bench.base.errors import UserError
from pfl_bench.reporting.figures import (
    clients,
    convergence,
    curves,
    distribution,
    labels,
    methods,
    profiles,
    ranks,
)
from pfl_bench.reporting.figures.methods import Method, Trial
from pfl_bench.reporting.ranking import ranking
from pfl_bench.reporting.tables.plan import TablePlan
from pfl_bench.store.records import RoundRecord

TOTAL = 100


def record(
    round: int, correct: list[int] | None, total: list[int] | None = None, **more: object
) -> RoundRecord:
    counts = None if correct is None else total or [TOTAL] * len(correct)
    losses = None if correct is None else [1.0] * len(correct)
    one = RoundRecord(round, [0], correct, counts, losses, 1.0, bytes_up=10, bytes_down=30,
                      seconds={"total": 0.5})  # fmt: skip
    return replace(one, **more)  # type: ignore[arg-type]


def trial(correct: list[list[int] | None], status: str = "finished", **config: object) -> Trial:
    records = [record(k, right) for k, right in enumerate(correct, start=1)]
    reason = None if status == "finished" else "because"
    return Trial(toy_config(**config), status, reason, records)  # type: ignore[arg-type]


def test_data_that_are_not_as_published_are_told_in_the_caption() -> None:
    one = trial([[10], [20]], dataset="cifar10")
    several = [Method("FedAvg", (one, replace(one, remark="JPEG copy")))]
    for figure in (
        curves.draw(several, "iterations", "lite"),
        clients.draw(several, "lite"),
        distribution.draw(np.ones((2, 3), int), one.config, "lite", remark="JPEG copy"),
    ):
        assert "Cifar10 (JPEG copy)" in " ".join(figure.get_suptitle().split())


def test_a_remark_is_made_on_the_data_that_it_is_about() -> None:
    ours = trial([[10], [20]], dataset="mnist")
    theirs = trial([[10], [20]], dataset="agnews", data_fingerprint="another")
    several = [Method("A", (ours,)), Method("B", (replace(theirs, remark="a part"),))]
    assert "a part" not in curves.draw(several, "iterations", "lite").get_suptitle()
    assert "(a part)" in curves.draw(several[::-1], "iterations", "lite").get_suptitle()


def test_a_remark_or_a_name_is_written_as_it_is_whatever_matplotlib_might_read_into_it() -> None:
    one = replace(trial([[10], [20]], dataset="cifar10"), remark=r"$\foo$")
    other = trial([[10]])
    figure = curves.draw(
        [Method(r"$\bar{$", (one,)), Method("B", (other,))], "iterations", "lite", heading="$5, $6"
    )
    figure.draw_without_rendering()
    flat = distribution.draw(np.ones((2, 3), int), one.config, "lite", remark=one.remark)
    flat.draw_without_rendering()


def test_curves_of_different_settings_or_numbers_of_seeds_say_so() -> None:
    one, other = trial([[10], [20]]), trial([[10], [20]], clients=7)
    several = [Method("A", (one, replace(one, remark=""))), Method("B", (other,))]
    caption = " ".join(curves.draw(several, "iterations", "lite").get_suptitle().split())
    assert "Some curves have fewer seeds, 1 at least." in caption
    assert "The setting is that of the first curve." in caption


# --- what is read ---------------------------------------------------------------------------------


def test_a_band_is_mean_and_sample_deviation_where_all_seeds_have_a_round() -> None:
    one = methods.band([{1: (1, 10.0), 2: (2, 20.0), 3: (3, 9.0)}, {1: (1, 30.0), 2: (4, 26.0)}])
    assert one.x == [1, 3]
    assert one.mean == [20.0, 23.0]
    assert one.std == pytest.approx([statistics.stdev([10, 30]), statistics.stdev([20, 26])])
    assert one.high == pytest.approx([20 + 200**0.5, 23 + 18**0.5])


def test_a_single_seed_has_no_deviation() -> None:
    assert methods.band([{1: (1, 10.0)}]).std is None


@pytest.mark.parametrize(
    ("cost", "spent"), [("iterations", [1, 3]), ("bytes", [40, 120]), ("seconds", [0.5, 1.5])]
)
def test_costs_add_up_over_rounds_that_are_not_scored_too(cost: str, spent: list[float]) -> None:
    found = methods.accuracy_over(trial([[50, 70], None, [80, 90]]), cost)
    assert found == {1: (spent[0], 60.0), 3: (spent[1], 85.0)}


def test_a_client_is_averaged_over_seeds_in_the_best_round_of_each() -> None:
    one = Method("A", (trial([[10, 20], [60, 40]]), trial([[90, 80], [1, 1]])))
    assert methods.client_accuracies(one) == [60.0, 75.0]


def test_a_client_without_test_samples_has_no_accuracy() -> None:
    only = Trial(toy_config(), "finished", None, [record(1, [5, 0], [10, 0])])
    assert methods.client_accuracies(Method("A", (only,))) == [50.0]


def test_trials_that_did_not_finish_are_told() -> None:
    good, bad = trial([[1, 2]]), trial([], status="skipped")
    assert Method("A", (good, good)).note == ""
    assert Method("A", (good, bad)).note == "A: 1 of 2 seeds skipped (because)."
    with pytest.raises(UserError, match=r"nothing to draw: A: skipped \(because\)"):
        methods.drawable([Method("A", (bad,))])


# --- names at the ends of lines -------------------------------------------------------------------

PLACES = st.lists(st.floats(0, 100), min_size=1, max_size=8)


@given(PLACES)
def test_names_keep_their_order_and_distance_and_stay_inside(places: list[float]) -> None:
    found = labels.spread(places, 10, 0, 100)
    order = sorted(range(len(places)), key=places.__getitem__)
    in_order = [found[i] for i in order]
    assert all(b - a >= 10 - 1e-9 for a, b in pairwise(in_order))
    assert min(found) >= 0 and max(found) <= 100 + 1e-9


@given(PLACES, st.lists(st.floats(0, 50), min_size=8, max_size=8))
def test_no_other_arrangement_of_names_is_nearer(places: list[float], gaps: list[float]) -> None:
    found = np.array(labels.spread(places, 10, -1e6, 1e6))
    order = np.argsort(places, kind="stable")
    other = np.empty(len(places))
    other[order] = np.cumsum([gaps[0], *(10 + gap for gap in gaps[1 : len(places)])])
    distance = ((found - places) ** 2).sum()
    assert distance <= ((other - places) ** 2).sum() + 1e-6


# --- distribution ---------------------------------------------------------------------------------


def counts_of(clients: int, classes: int) -> np.ndarray:
    return np.random.default_rng(0).poisson(0.3, (clients, classes)) * 7


@pytest.mark.parametrize("clients", [10, 20, 50, 100, 200, 500])
@pytest.mark.parametrize("classes", [4, 10, 100, 200])
@pytest.mark.parametrize("width", [plot_style.COLUMN, plot_style.PAGE])
def test_circles_are_never_too_small_nor_a_figure_taller_than_a_page(
    clients: int, classes: int, width: float
) -> None:
    layout = distribution.lay_out(clients, classes, width)
    assert layout.bands * layout.abreast >= clients
    if layout.has_circles:
        assert layout.pitch >= distribution.LEAST
        heights = layout.bands * (classes * layout.cell[1] / 72 + distribution.BAND_GAP)
        assert heights + distribution.AROUND[1] <= distribution.TALLEST + 1e-9


@pytest.mark.parametrize(("clients", "classes"), [(20, 10), (500, 10), (100, 100)])
def test_every_client_and_class_that_has_samples_has_a_circle_of_their_number(
    clients: int, classes: int
) -> None:
    counts = counts_of(clients, classes)
    figure = distribution.draw(counts, toy_config(clients=clients), "quick")
    found = np.zeros_like(counts, dtype=float)
    for axes in figure.axes:
        (circles, *_) = axes.collections
        for (client, label), area in zip(circles.get_offsets(), circles.get_sizes(), strict=True):
            found[int(client), int(label)] = area
    np.testing.assert_allclose(found / found.max(), counts / counts.max(), atol=1e-6)


def test_where_circles_find_no_room_colours_tell_the_same() -> None:
    counts = counts_of(500, 200)
    figure = distribution.draw(counts, toy_config(clients=500), "quick")
    shown = np.ma.getdata(figure.axes[0].images[0].get_array()).T
    largest = shown.argmax(axis=1)
    assert (np.diff(largest) >= 0).all()
    assert sorted(map(tuple, shown)) == sorted(map(tuple, counts))


@pytest.mark.parametrize(("value", "shown"), [(0.2, 1), (7.9, 7), (43, 40), (9614, 9000)])
def test_a_legend_shows_round_numbers(value: float, shown: int) -> None:
    assert distribution.rounded(value) == shown


# --- what is drawn --------------------------------------------------------------------------------


def several(number: int, clients: int = 20, rounds: int = 6, seeds: int = 3) -> list[Method]:
    """Methods of which some end up close together, and one of which a seed diverged."""
    rng = np.random.default_rng(1)
    found = []
    for k in range(number):
        runs = [
            trial([rng.integers(0, 50 + k // 2 + t, clients).tolist() for t in range(rounds)],
                  clients=clients, source="standin", dataset="cifar10")
            for _ in range(seeds)
        ]  # fmt: skip
        found.append(Method(f"Per-FedAvg {k}", tuple(runs)))
    last = found[-1]
    odd = replace(last.trials[0], status="diverged", reason="the loss of client 3 is nan")
    return [*found[:-1], replace(last, trials=(odd, *last.trials[1:]))]


def recorded(clients: int, rounds: int = 40) -> Method:
    """A method with all series, over two seeds."""
    rng = np.random.default_rng(2)

    def extras(t: int) -> dict[str, object]:
        quantiles = np.sort(rng.uniform(0.1, 0.9, (clients, 7)), axis=1).tolist()
        when = {
            name: {"train_loss": 3 / t + k, "accuracy": 0.5 + k / 10}
            for k, name in enumerate(("before", "after"))
        }
        return {"convergence": when, "pir": [0.5 + 0.001 * t] * clients, "policy": quantiles}

    trials = []
    for _ in range(2):
        records = [record(t, [t] * clients, extras=extras(t)) for t in range(1, rounds + 1)]
        trials.append(Trial(toy_config("fedcp", clients=clients), "finished", None, records))
    return Method("FedCP", tuple(trials))


def many_methods() -> TablePlan:
    """Thirteen methods in nine columns, five seeds; each column is a shift of the one before."""
    return table_plan(
        [
            cell_plan(
                (f"Per-FedAvg {k}", f"c{j}"),
                [30.0 + k + (k * j) % 5 + seed / 10 for seed in range(5)],
            )
            for j in range(9)
            for k in range(13)
        ]
    )


FIGURES: dict[str, Callable[[], Figure]] = {
    "ranks": lambda: ranks.draw(many_methods()),
    "ranks in a column": lambda: ranks.draw(many_methods(), plot_style.COLUMN),
    "profiles": lambda: profiles.draw(many_methods()),
    "curves": lambda: curves.draw(several(3), "iterations", "quick"),
    "curves of 13": lambda: curves.draw(several(13), "iterations", "quick"),
    "curves over bytes": lambda: curves.draw(several(13), "bytes", "quick"),
    "curves below the paper": lambda: curves.draw(
        several(3), "iterations", "quick", paper={"Per-FedAvg 0": 80.0, "Per-FedAvg 2": 81.5}
    ),
    "clients": lambda: clients.draw(several(13), "quick"),
    "500 clients": lambda: clients.draw(several(3, 500, 2), "quick"),
    "convergence": lambda: convergence.draw(recorded(4), "quick"),
    "policy": lambda: policy.draw(recorded(20), "quick", client=3),
    "policy of 500": lambda: policy.draw(recorded(500, 3), "quick", client=3),
    "distribution": lambda: distribution.draw(counts_of(20, 10), toy_config(clients=20), "quick"),
    "distribution to 500": lambda: distribution.draw(
        counts_of(500, 10), toy_config(clients=500), "quick"
    ),
    "distribution of 200": lambda: distribution.draw(
        counts_of(500, 200), toy_config(clients=500), "quick"
    ),
}


@functools.cache
def render(name: str) -> tuple[Figure, list[Text]]:
    """The figure, and the texts that really appear in it."""
    shown: list[Text] = []
    draw = Text.draw

    def noting(self: Text, renderer: object) -> None:
        if self.get_visible() and self.get_text().strip():
            shown.append(self)
        draw(self, renderer)

    with pytest.MonkeyPatch.context() as patch, plot_style.drawing("test", plot_style.PAPER):
        figure = FIGURES[name]()
        figure.draw_without_rendering()
        patch.setattr(Text, "draw", noting)
        figure.canvas.draw()
    return figure, shown


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_is_cut_off_or_smaller_than_six_points(name: str) -> None:
    figure, shown = render(name)
    whole = figure.bbox.padded(1)
    assert len(shown) > 5
    for text in shown:
        box = Text.get_window_extent(text)
        assert text.get_fontsize() >= plot_style.SMALL, text.get_text()
        assert whole.contains(*box.min) and whole.contains(*box.max), text.get_text()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_says_what_it_shows(name: str) -> None:
    caption = " ".join(render(name)[0].get_suptitle().split())
    if name.startswith(("ranks", "profiles")):
        assert "A toy table. quick profile, 5 seeds, 9 lines (a column each)." in caption
        assert "share a dataset" in caption  # what it does not allow for
        return
    assert "quick profile." in caption
    assert "clients" in caption and "practical(0.3)" in caption


def test_a_stand_in_a_diverged_seed_and_the_iterations_are_in_the_caption() -> None:
    caption = " ".join(render("curves")[0].get_suptitle().split())
    assert "Cifar10 (stand-in)" in caption
    assert "6 iterations, 3 seeds (mean ± std)" in caption
    assert "Per-FedAvg 2: 1 of 3 seeds diverged (the loss of client 3 is nan)." in caption


def test_times_that_cannot_be_compared_are_said_to_be_so() -> None:
    def caption(is_timed: bool) -> str:
        runs = tuple(replace(trial([[1], [2]]), is_timed=is_timed) for _ in range(2))
        return " ".join(curves.draw([Method("A", runs)], "seconds", "quick").get_suptitle().split())

    assert "shared the machine" in caption(False)
    assert "shared the machine" not in caption(True)


def test_the_papers_figures_are_named_beside_those_who_have_one() -> None:
    figure, shown = render("curves below the paper")
    assert {"paper 80.00", "paper 81.50"} <= {text.get_text() for text in shown}
    assert "Horizontal lines: the paper’s figures." in " ".join(figure.get_suptitle().split())
    assert "Horizontal" not in render("curves")[0].get_suptitle()


@pytest.mark.parametrize(
    ("name", "count"),
    [("curves of 13", 13), ("curves over bytes", 13), ("curves below the paper", 5)],
)
def test_names_of_lines_neither_cover_the_panel_nor_each_other(name: str, count: int) -> None:
    figure, shown = render(name)
    panel = figure.axes[0].get_window_extent()
    names = {t: t.get_text() for t in shown if t.get_text().startswith(("Per-FedAvg ", "paper "))}
    boxes = [Text.get_window_extent(text) for text in names]
    assert len(boxes) == count
    for k, box in enumerate(boxes):
        assert not box.overlaps(panel)
        assert all(box.y0 >= o.y1 - 1 or box.y1 <= o.y0 + 1 for o in boxes[k + 1 :])


def test_a_curve_is_the_mean_accuracy_over_the_seeds() -> None:
    one = Method("A", (trial([[10, 30], [50, 70]]), trial([[20, 40], [70, 90]])))
    (line,) = curves.draw([one], "iterations", "quick").axes[0].lines
    assert line.get_xydata().tolist() == [[1, 25], [2, 70]]


def test_convergence_shows_loss_above_accuracy_before_and_after() -> None:
    loss, accuracy = convergence.draw(recorded(4), "quick").axes
    before, after = (line.get_ydata()[1] for line in loss.lines)
    assert (before, after) == (1.5, 2.5)
    assert [line.get_ydata()[0] for line in accuracy.lines] == pytest.approx([50.0, 60.0])


def test_policy_shows_the_clients_pir_and_the_quantiles_of_the_last_round() -> None:
    method = recorded(20)
    above, below = policy.draw(method, "quick", client=3).axes
    assert above.lines[0].get_ydata()[-1] == pytest.approx(0.54)
    medians = [q[3] for q in method.trials[0].records[-1].extras["policy"]]
    lines = (line for line in below.lines if line.get_color() == plot_style.COLOURS[1])
    drawn = [line.get_ydata()[0] for line in lines]
    assert drawn == pytest.approx(medians)


def test_a_variant_without_a_policy_is_refused() -> None:
    one = Method("FedCP", (trial([[1, 2]], algo="fedcp"),))
    with pytest.raises(UserError, match="has no policy to show"):
        policy.draw(one, "quick", client=0)


def test_the_ranks_diagram_has_a_line_for_every_method_at_its_mean_rank() -> None:
    plan = many_methods()
    found = ranking(plan)
    assert found is not None
    (axes,) = ranks.draw(plan).axes
    stems = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata()) == 3]
    assert stems == pytest.approx(list(found.means.values()))
    bars = [line for line in axes.lines if line.get_linewidth() > 2]
    assert len(bars) == len(found.groups()) > 0


@given(st.lists(st.integers(0, 30).map(float), min_size=1, max_size=12), st.integers(0, 30))
def test_a_profile_s_stairs_are_the_share_within_each_distance(
    values: list[float], at: int
) -> None:
    x, y = profiles.steps(sorted(values), 30.0)
    below = [height for place, height in zip(x, y, strict=True) if place <= at]
    assert below[-1] == pytest.approx(sum(value <= at for value in values) / len(values))
    assert x == sorted(x) and y == sorted(y)
