"""AG News: 127,600 short news items in four classes."""

from __future__ import annotations

from pathlib import Path

from pfl_bench.base import UserError
from pfl_bench.data import DatasetSpec, convert
from pfl_bench.data.standins import text as standin_text


def prepare(out: Path, source: Path | None) -> None:
    """From one CSV (class, title, description), or from a folder with train.csv and test.csv."""
    if source is None:
        raise UserError(
            "AG News is not downloaded for you: get its train.csv and test.csv (class, title, "
            "description) and run `pfl-bench data prepare agnews --from FOLDER`"
        )
    convert.from_csv(out, source, classes=4)


SPECS = (
    DatasetSpec(
        name="agnews",
        title="AG News",
        kind="text",
        classes=4,
        samples=127_600,
        # The paper has no pathological setting here; two classes, as for the other small sets.
        classes_per_client=2,
        model="fasttext",
        standin=standin_text.render,
        standin_key=standin_text.key(),
        prepare=prepare,
        needs="FOLDER",
    ),
)
