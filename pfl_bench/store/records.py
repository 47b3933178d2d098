"""What a run leaves behind as text: the record of each round, and sealed JSON documents.

Everything here is strict JSON that proves itself: a line carries a CRC-32, a document a SHA-256 of
its content, so damage is noticed rather than read. JSON has no infinities: non-finite numbers are
written as the strings "NaN", "Infinity" and "-Infinity" and come back as floats. Where the text
lies on disk is the business of `pfl_bench.store.folder`.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
import re
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from pfl_bench.store.curve import Patience, still_rising
from pfl_bench.store.schema import mismatch

_COMPACT = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
VALIDATION, NEWCOMERS = "validation", "new clients"
"""Where a record has what was counted on samples held back, and on clients that never join: in its
extras, as lists `correct` and `total` with an entry for each client."""
_TRAFFIC = ("bytes_up", "bytes_down", "parameters_up", "parameters_down")
_LINE = re.compile(rb'(?P<start>\{.*),"crc32":"(?P<crc>[0-9a-f]{8})"\}', re.DOTALL)


class DamagedError(Exception):
    """Stored text or tensors that are not what was written; the message says what is wrong."""


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict ASCII JSON; compact and canonical unless `indent` asks for a readable layout."""
    if indent is None:
        return _COMPACT.encode(_encoded(value))
    return json.dumps(_encoded(value), indent=indent, allow_nan=False)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested names joined by dots; a list becomes one JSON text."""
    cells: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            cells |= flat(value, f"{prefix}{name}.")
        else:
            cells[f"{prefix}{name}"] = to_json(value) if isinstance(value, list) else value
    return cells


def from_json(text: str | bytes) -> Any:
    """The value `to_json` wrote; raises `DamagedError` for anything that is not JSON."""
    data = text.encode() if isinstance(text, str) else text
    try:
        value = json.loads(data)
        return _decoded(value) if b'NaN"' in data or b'Infinity"' in data else value
    except (ValueError, RecursionError) as error:
        raise DamagedError("not readable as JSON") from error


def _encoded(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(name): _encoded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch values, without importing either
        return _encoded(value.tolist())
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, str):
        return _NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {name: _decoded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    return value


def seal(document: dict[str, Any]) -> str:
    """Readable JSON of `document` that ends with a digest of its own content."""
    digest = hashlib.sha256(to_json(document).encode()).hexdigest()
    return to_json({**document, "digest": digest}, indent=2) + "\n"


def unseal(text: str | bytes) -> dict[str, Any]:
    """The document that `seal` wrote; raises `DamagedError` where its content has changed since."""
    document = from_json(text)
    if not isinstance(document, dict):
        raise DamagedError("not a JSON object")
    digest = document.pop("digest", None)
    try:
        content = to_json(document)
    except RecursionError as error:  # writing goes less deep than reading
        raise DamagedError("nested too deeply") from error
    if digest != hashlib.sha256(content.encode()).hexdigest():
        raise DamagedError("its content does not match its digest")
    return document


@dataclass(frozen=True)
class RoundRecord:
    """One round, over all clients. `correct`, `total` and `loss` are per client, on its test set,
    and None where the round was not evaluated. Bytes and parameters are sums over the clients that
    joined. Only `seconds` may differ between two runs of one configuration."""

    round: int
    joined: list[int]
    correct: list[int] | None = None
    total: list[int] | None = None
    loss: list[float] | None = None
    train_loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    parameters_up: int = 0
    parameters_down: int = 0
    extras: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """Correct predictions of all clients over all test samples."""
        if self.correct is None or self.total is None or not sum(self.total):
            return None
        return sum(self.correct) / sum(self.total)

    @property
    def judged(self) -> float | None:
        """What patience and the best round go by: the accuracy on samples held back for that, or
        where there are none, the test accuracy, as published."""
        return self.accuracy if VALIDATION not in self.extras else self.pooled(VALIDATION)

    def pooled(self, counted: str) -> float | None:
        """The accuracy over all clients of what is counted in the extras; None where nothing is."""
        counts = self.extras.get(counted)
        if not isinstance(counts, dict):
            return None
        correct, total = counts.get("correct", []), counts.get("total", [])
        is_sound = _are_counts(correct) and _are_counts(total) and len(correct) == len(total)
        if not is_sound or not sum(total):
            return None
        is_possible = all(right <= of for right, of in zip(correct, total, strict=True))
        return sum(correct) / sum(total) if is_possible else None

    @property
    def test_loss(self) -> float | None:
        """The mean over all test samples of all clients."""
        if self.loss is None or self.total is None or not sum(self.total):
            return None
        pairs = zip(map(float, self.loss), self.total, strict=True)
        try:
            return math.fsum(loss * total for loss, total in pairs if total) / sum(self.total)
        except (OverflowError, ValueError):  # the sum leaves the floats, or infinities cancel
            return math.nan

    @property
    def total_seconds(self) -> float:
        return self.seconds.get("total", sum(self.seconds.values()))

    def to_line(self) -> str:
        """One line of JSON, newline included, whose last field is a CRC-32 of what precedes it."""
        start = to_json(asdict(self))[:-1]
        return f'{start},"crc32":"{zlib.crc32(start.encode()):08x}"}}\n'

    @classmethod
    def from_line(cls, line: str | bytes) -> RoundRecord:
        """The record `to_line` wrote; raises `DamagedError` for a line that is cut or altered."""
        data = line.encode() if isinstance(line, str) else line
        match = _LINE.fullmatch(data.removesuffix(b"\n"))
        if match is None:
            raise DamagedError("incomplete")
        if int(match["crc"], 16) != zlib.crc32(match["start"]):
            raise DamagedError("its checksum does not match")
        content = from_json(match["start"] + b"}")
        if problem := _problem(content):
            raise DamagedError(problem)
        return cls(**content)

    @classmethod
    def of_sound(cls, line: bytes) -> RoundRecord:
        """The same of a line that is known to be what `to_line` wrote: nothing is judged twice."""
        content = from_json(line)
        del content["crc32"]
        return cls(**content)


def _problem(record: dict[str, Any]) -> str | None:
    """What keeps the content of a line from being a round: a checksum does not tell what was never
    a record."""
    if problem := mismatch("record", record):
        return problem
    correct, total, loss = (record[name] for name in ("correct", "total", "loss"))
    if correct is None or total is None:
        return None if correct is total else "correct and total are not of the same clients"
    if not len(correct) == len(total) == len(total if loss is None else loss):
        return "correct, total and loss are not of the same clients"
    if any(map(operator.gt, correct, total)):
        return "a client has more correct than there are"
    return None


def _are_counts(values: Any) -> bool:
    """Whether it is a list of whole numbers, none below zero."""
    return isinstance(values, list) and all(type(each) is int and each >= 0 for each in values)


def same_result(a: RoundRecord, b: RoundRecord) -> bool:
    """Whether two records agree to the last bit in everything but the time they took."""
    return _untimed(a) == _untimed(b)


def _untimed(record: RoundRecord) -> str:
    return to_json({**asdict(record), "seconds": {}})


def digests(records: Iterable[RoundRecord], timed: bool = False) -> list[str]:
    """After each round, a digest of all results up to there: equal for the same bits, however long
    they took; or with their times, as of the file that holds them."""
    so_far, found = hashlib.sha256(), []
    for record in records:
        so_far.update((record.to_line() if timed else _untimed(record)).encode())
        found.append(so_far.hexdigest())
    return found


def read_lines(data: bytes, most: int | None = None) -> tuple[list[RoundRecord], str | None]:
    """The longest sound run of consecutive rounds at the start, and what is wrong after it; only
    the first so many where `most` says so."""
    records: list[RoundRecord] = []
    *lines, rest = data.split(b"\n")
    for number, line in enumerate(lines[:most], start=1):
        try:
            record = RoundRecord.from_line(line)
        except DamagedError as error:
            return records, f"line {number} is damaged ({error})"
        if records and record.round != records[-1].round + 1:
            return records, f"line {number} is round {record.round} after {records[-1].round}"
        records.append(record)
    return records, f"line {len(lines) + 1} is incomplete" if rest else None


_judged: dict[str, list[RoundRecord]] = {}


def remember_sound(digest: str, records: list[RoundRecord]) -> None:
    """Keep the records that were judged last, of this one run alone, until they are asked for: who
    looks at a run often wants them next, and parsing is half of the work."""
    _judged.clear()
    _judged[digest] = records


def sound_records(digest: str, lines: Sequence[bytes]) -> list[RoundRecord]:
    """The records of lines with this digest, all of which were found to be sound before."""
    return _judged.pop(digest, None) or [RoundRecord.of_sound(line) for line in lines]


class Ending:
    """Where a run ends: after `rounds`, or when it is out of patience (`curve.Patience`). Told of
    one round after another, it says whether that was the last."""

    def __init__(self, rounds: int, patience: int | None, untrained: float | None = None) -> None:
        self._rounds = rounds
        self._patience = None if patience is None else Patience(patience, untrained)
        self.reached = False

    def add(self, record: RoundRecord) -> bool:
        if self._patience is not None and record.judged is not None:
            self._patience.add(record.judged)
        is_impatient = self._patience is not None and self._patience.is_out
        self.reached = self.reached or is_impatient or record.round >= self._rounds
        return self.reached


def ends_after(records: Sequence[RoundRecord], ending: Ending) -> int | None:
    """How many of the records belong to a run with this ending; None where they do not reach it."""
    return next((k for k, record in enumerate(records, start=1) if ending.add(record)), None)


def summarise(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """The figures of a whole run: best round, last round, time, traffic.

    Traffic is per joined client and round; all accuracies lie in [0, 1]."""
    scored = [record for record in records if record.accuracy is not None]
    best = best_round(records)
    seconds = math.fsum(record.total_seconds for record in records)
    joined = sum(len(record.joined) for record in records)
    traffic = {
        _per_client(name): sum(getattr(record, name) for record in records) / joined
        if joined
        else None
        for name in _TRAFFIC
    }
    return {
        "best": _score(best) if best else None,
        "last": _score(scored[-1]) if scored else None,
        "still_rising": still_rising([r.judged for r in scored if r.judged is not None]),
        "rounds": len(records),
        "total_seconds": seconds,
        "seconds_per_round": seconds / len(records) if records else None,
        **traffic,
    }


def best_round(records: Sequence[RoundRecord]) -> RoundRecord | None:
    """The round whose test accuracy is the run's score: the earliest of those judged best."""
    scored = [(r, r.judged) for r in records if r.accuracy is not None and r.judged is not None]
    return max(scored, key=lambda pair: pair[1], default=(None, 0.0))[0]


def _per_client(name: str) -> str:
    return f"{name}_per_client"


def _score(record: RoundRecord) -> dict[str, float | int | None]:
    """Accuracy of one round, pooled and over clients; a client without test samples has none."""
    counts = zip(record.correct or [], record.total or [], strict=True)
    accuracies = sorted(correct / total for correct, total in counts if total)
    return {
        "round": record.round,
        "accuracy": record.accuracy,
        "mean_over_clients": statistics.fmean(accuracies),
        "std_over_clients": statistics.pstdev(accuracies),
        "worst_decile": worst_decile(accuracies),
    }


def worst_decile(accuracies: Sequence[float]) -> float:
    """The mean of the worst tenth of ascending accuracies, at least one client."""
    return statistics.fmean(accuracies[: max(1, len(accuracies) // 10)])
