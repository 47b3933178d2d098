"""The report: one HTML page that opens from disk and holds all it needs, from what the store holds.

The page's data is gathered in `runs` and `tables`; its looks and manners are the files
report.* in templates/. Everything that came from a file is escaped: by jinja2 in the markup, as
JSON in the data, and by the script where Plotly would take markup. A policy in the page forbids all
network, and every script but the page's own.

What is not seen at once lies compressed in the page and is unpacked when it is: Plotly's script,
the curves of an experiment with all that its runs tell, tables by another metric.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import VERSION, UserError, install_command, write_atomically
from pfl_bench.reporting.report.about import about
from pfl_bench.reporting.report.runs import Gathered, gather
from pfl_bench.reporting.report.tables import ReadResults, tables
from pfl_bench.store import Store, cached_at, load_cached, save_cached, to_json, utc_now

if TYPE_CHECKING:
    from pfl_bench.config import Profile
    from pfl_bench.reporting.tables import TableSpec
    from pfl_bench.store import StoredRun


_DRAWN = 1
"""Raised when what is drawn of a run changes: what was kept in the user's cache is then old."""
_TOGETHER = 100
"""So many runs at least are packed together: fewer would share little."""


def write_report(
    out: Path,
    store: Store,
    specs: Sequence[TableSpec],
    profiles: Sequence[Profile],
    data_dir: Path,
) -> Gathered:
    """Write the page to `out`, whole or not at all; what it tells of the runs."""
    _jinja2(), _plotly()  # told at once if missing
    runs: list[StoredRun] = []
    gathered = _gathered(store, runs)
    made = tables(ReadResults(store.root, runs), specs, profiles, data_dir) if gathered.runs else []
    page = render_page(gathered, made, str(store.root))
    try:
        write_atomically(out, page)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    return gathered


def _gathered(store: Store, runs: list[StoredRun]) -> Gathered:
    """What is told of the stored runs, which are put into `runs`. What is drawn of them is taken
    from the user's cache, and kept there."""
    cache = cached_at(store.root, f"-drawn{_DRAWN}")
    known = load_cached(cache)
    drawn = dict(known)
    gathered = gather(_into(runs, store.all()), drawn)
    if drawn != known:
        save_cached(cache, drawn)
    return gathered


def _into(runs: list[StoredRun], found: Iterable[StoredRun]) -> Iterator[StoredRun]:
    for run in found:
        runs.append(run)
        yield run


def render_page(gathered: Gathered, made: Sequence[dict[str, Any]], store: str) -> str:
    """The page as text."""
    jinja2 = _jinja2()
    app = _template("report.js")
    plotly = _plotly() if any(run["rounds"] for run in gathered.runs) else ""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    experiments, parts = _parts(gathered)
    packed = {"data": to_json({"runs": gathered.runs, "experiments": experiments}), **parts}
    sheet = environment.get_template("sheet.html.j2").module.sheet
    others = {
        table["id"]: {score: str(sheet(told)) for score, told in table["others"].items()}
        for table in made
        if table["others"]
    }
    packed |= {"others": to_json(others), "plotly": plotly}
    return environment.get_template("report.html.j2").render(
        policy=_policy([script for script in (app, plotly) if script]),
        style=_safe(_template("report.css")),
        app=_safe(app),
        packed={name: _packed(text) for name, text in packed.items() if text},
        tables=made,
        scores={score: title for table in made for score, title in table["scores"].items()},
        choices=_choices(gathered.runs),
        about=about(gathered.runs),
        runs=gathered.runs,
        unreadable=gathered.unreadable,
        unfinished=sum(run["status"] == "interrupted" for run in gathered.runs),
        rising=sum(run["rising"] for run in gathered.runs),
        store=store,
        version=VERSION,
        made=utc_now()[:16].replace("T", " "),
    )


def _choices(runs: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """What can be filtered by, and its values."""
    return {
        name: sorted({run[name] for run in runs}, key=str.lower)
        for name in ("dataset", "setting", "method")
    }


def _parts(gathered: Gathered) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The experiments, each with the part of the page that has its runs' details; and the parts."""
    members = [
        [k for one in e.get("series", ()) for k in one["runs"]] for e in gathered.experiments
    ]
    experiments, parts = [], [[]]  # type: ignore[var-annotated]
    for experiment, runs in zip(gathered.experiments, members, strict=True):
        if len(parts[-1]) >= _TOGETHER:
            parts.append([])
        parts[-1] += runs
        experiments.append({**experiment, "part": f"part-{len(parts) - 1}"})
    texts = (",".join(f'"{k}":{gathered.details[k]}' for k in runs) for runs in parts)
    return experiments, {f"part-{k}": f"{{{text}}}" for k, text in enumerate(texts)}


def _packed(text: str) -> str:
    """Letters and digits, which no parser of HTML takes for markup; the script unpacks them."""
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


def _policy(scripts: Sequence[str]) -> str:
    """Nothing is fetched or sent, and no script runs but those given, told by their digests."""
    digests = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _safe(text: str) -> Any:
    """Text that stands in the page as it is: a part of the package, or an escaped island."""
    from markupsafe import Markup

    return Markup(text)


def _template(name: str) -> str:
    return (resources.files("pfl_bench.reporting.report") / "templates" / name).read_text(
        encoding="utf-8"
    )


def _jinja2() -> Any:
    try:
        import jinja2
    except ImportError:
        raise _missing("jinja2") from None
    return jinja2


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise _missing("plotly") from None
    return get_plotlyjs()


def _missing(package: str) -> UserError:
    return UserError(
        f"the report needs the package {package}; install it with: {install_command('report')}"
    )
