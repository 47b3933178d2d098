"""The report: one HTML page that opens from disk and holds all it needs, from what the store holds.

The page's data is gathered in `runs` and `tables`; its looks and manners are the files
report.* in templates/. Everything that came from a file is escaped: by jinja2 in the markup, as
JSON in the data, and by the script where Plotly would take markup. A policy in the page forbids all
network, and every script but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import VERSION, UserError, install_command, write_atomically
from pfl_bench.reporting.report.runs import Gathered, gather
from pfl_bench.reporting.report.tables import ReadResults, tables
from pfl_bench.store import Store, to_json, utc_now

if TYPE_CHECKING:
    from pfl_bench.config import Profile
    from pfl_bench.reporting.tables import TableSpec


# In a JSON text these stand in strings only, where an escape means the same.
_ISLAND = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def write_report(
    out: Path,
    store: Store,
    specs: Sequence[TableSpec],
    profiles: Sequence[Profile],
    data_dir: Path,
) -> Gathered:
    """Write the page to `out`, whole or not at all; what it tells of the runs."""
    _jinja2(), _plotly()  # told at once if missing
    runs = list(store.all())
    gathered = gather(runs)
    made = tables(ReadResults(store.root, runs), specs, profiles, data_dir) if gathered.runs else []
    page = render_page(gathered, made, str(store.root))
    try:
        write_atomically(out, page)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from error
    return gathered


def render_page(gathered: Gathered, made: Sequence[dict[str, Any]], store: str) -> str:
    """The page as text."""
    jinja2 = _jinja2()
    has_curves = any(run["curve"]["round"] for run in gathered.runs)
    scripts = {"app": _template("report.js"), "plotly": _plotly() if has_curves else ""}
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_template("report.html.j2")).render(
        policy=_policy([script for script in scripts.values() if script]),
        style=_safe(_template("report.css")),
        scripts={name: _safe(script) for name, script in scripts.items()},
        island=_safe(_island({"runs": gathered.runs, "experiments": gathered.experiments})),
        tables=made,
        choices=_choices(gathered.runs),
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


def _island(content: dict[str, Any]) -> str:
    """JSON that no parser of HTML takes for markup."""
    return to_json(content).translate(_ISLAND)


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
