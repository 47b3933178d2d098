"""Stored documents and their schemas: what is written passes, and the files say all that is
checked, so that another program can check the same."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_bench.config.run_config import RunConfig
from pfl_bench.store import schema
from pfl_bench.store.records import RoundRecord, summarise, to_json
from pfl_bench.store.schema import mismatch

FOLDER = Path(schema.__file__).with_name("documents")
KINDS = ("config", "record", "summary", "attack")
DIGEST = "0" * 64

RECORD = json.loads(RoundRecord(1, [0, 1], [1, 2], [2, 2], [0.5, 1.5], 0.5).to_line())
DOCUMENTS: dict[str, dict[str, Any]] = {
    "config": {
        "key": "0" * 16,
        "slug": "fedcp",
        "config": RunConfig(
            algo="fedcp", hyper={"lam": 5.0}, dataset="cifar10", source="real", beta=0.1,
            data_fingerprint="0" * 16, setting="practical", clients=20, model="cnn", rounds=6,
            batch_size=10, lr=0.005, seed=0,
        ).to_dict(),
    },
    "record": RECORD,
    "summary": {
        "key": "0" * 16,
        "status": "finished",
        "reason": None,
        **summarise([RoundRecord(1, [0, 1], [1, 2], [2, 2], [0.5, 1.5], 0.5)]),
        "records_sha256": DIGEST,
        "provenance": {"finished": "2026-01-01T00:00:00+00:00", "peak_memory": 1, "torch": "2.4"},
        "timed": False,
        "workers": 1,
        "device": "cpu",
        "data": "a note",
    },
    "attack": {
        "key": "0" * 16,
        "of": DIGEST,
        "planned": 1,
        "victims": [{"psnr": [7.5], "mismatch": 0.5, "shape": [1, 3, 8, 8], "original": "AAAA"}],
    },
}  # fmt: skip


def contents(kind: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{kind}.schema.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_it_must_be(kind: str) -> None:
    assert mismatch(kind, DOCUMENTS[kind]) is None


def test_a_configuration_is_described_field_by_field() -> None:
    described = contents("config")["properties"]["config"]
    of_a_run = {field.name for field in fields(RunConfig)}
    assert set(described["properties"]) == {"version", *of_a_run}, "see config.schema.json"
    needed = {field.name for field in fields(RunConfig) if field.default is MISSING}
    assert set(described["required"]) == needed
    assert set(get_type_hints(RunConfig)) == of_a_run


def test_a_record_and_a_summary_are_described_field_by_field() -> None:
    record = contents("record")
    assert set(record["properties"]) == {*(f.name for f in fields(RoundRecord)), "crc32"}
    assert set(record["required"]) == {f.name for f in fields(RoundRecord)}
    summary = contents("summary")
    assert summarise([]).keys() <= summary["properties"].keys()
    assert set(DOCUMENTS["summary"]["best"]) == set(summary["$defs"]["score"]["properties"])


def test_no_word_of_a_schema_goes_unheeded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="says format, which nobody checks"):
        schema._compiled({"type": "string", "format": "date"}, "")


@pytest.mark.parametrize(
    ("kind", "change", "complaint"),
    [
        ("record", {"round": 10**400}, "round"),
        ("record", {"round": True}, "round"),
        ("record", {"seconds": {"total": float("inf")}}, "seconds.total"),
        ("record", {"joined": [0, [1]]}, "joined[1]"),
        ("record", {"extras": {"a": "\ud800"}}, "extras.a"),
        ("record", {"extras": {"\udfff": 1}}, "as a name"),
        ("record", {"surprise": 1}, "'surprise' is unknown"),
        ("summary", {"provenance": {"finished": 7}}, "provenance.finished"),
        ("summary", {"best": {"round": 1}}, "best: there is no accuracy"),
        ("summary", {"total_seconds": 10**400}, "total_seconds"),
        ("summary", {"status": []}, "status"),
        ("summary", {"records_sha256": "0" * 64 + "\n"}, "records_sha256"),
        ("summary", {"data": "a\nb"}, "data"),
        ("config", {"key": 1}, "key"),
        ("config", {"config": []}, "config"),
        ("attack", {"victims": [{"psnr": ["high"]}]}, "victims[0].psnr[0]"),
    ],
)
def test_what_cannot_be_is_named_with_its_place(
    kind: str, change: dict[str, Any], complaint: str
) -> None:
    assert complaint in str(mismatch(kind, {**DOCUMENTS[kind], **change}))


def test_what_is_nested_without_end_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(900):
        deep = [deep]
    assert mismatch("record", {**RECORD, "extras": {"a": deep}}) is not None


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(found for name, each in inner for found in places(each, (*path, name)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    copied = value.copy()
    copied[first] = changed(value[first], tuple(rest), new)
    return copied


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 2**63, 10**400, -0.5, 0.5, 1e300, -1e300, "", "a", "0" * 16]),
    # None ends with a newline: there the library, being Python's, reads $ as the standard does not.
    st.sampled_from(["0" * 64, "NaN", "Infinity", "\ud800", "a\nb", "x" * 600, "0" * 63]),
    st.sampled_from([[], {}, [1, "a"], {"a": 1}, {"": 1}, {"\ud800": 1}, [[0.5]], [None]]),
)


@pytest.mark.parametrize("kind", KINDS)
def test_other_programs_judge_by_the_files_as_this_one_does(kind: str) -> None:
    """Ours against a library that knows all of JSON Schema."""
    jsonschema = pytest.importorskip("jsonschema")
    referencing = pytest.importorskip("referencing")
    files = [json.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.json")]
    known = [(file["$id"], referencing.Resource.from_contents(file)) for file in files]
    judge = jsonschema.Draft202012Validator(
        contents(kind), registry=referencing.Registry().with_resources(known)
    )
    judge.check_schema(contents(kind))
    assert judge.is_valid(DOCUMENTS[kind])

    @given(st.sampled_from(places(DOCUMENTS[kind])), odd)
    def agree(place: tuple[Any, ...], value: Any) -> None:
        document = changed(DOCUMENTS[kind], place, value)
        assert (mismatch(kind, document) is None) == judge.is_valid(document), document

    agree()


def test_floats_that_json_lacks_are_judged_as_they_are_written() -> None:
    diverged = {**RECORD, "loss": [float("nan"), float("-inf")]}
    assert mismatch("record", diverged) is None
    assert mismatch("record", json.loads(to_json(diverged))) is None
    assert mismatch("record", {**RECORD, "loss": [float("nan"), "nan"]}) is not None
