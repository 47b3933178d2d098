"""What a user says of a prepared file, kept beside it, to stand wherever its figures do."""

from __future__ import annotations

from pathlib import Path

from pfl_bench.base import UserError, read_regular, write_atomically

NOTE_LETTERS = 100
NOTE_BYTES = 8 * NOTE_LETTERS


def note(name: str, data_dir: Path) -> str:
    """What the user says of a prepared file, to stand wherever its figures do; often nothing."""
    path = _note_file(name, data_dir)
    try:
        words = read_regular(path, NOTE_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    return _one_line(words.strip(), str(path))


def write_note(name: str, data_dir: Path, words: str) -> None:
    """Keep a note beside a prepared file; an empty one takes it away."""
    path = _note_file(name, data_dir)
    words = _one_line(words.strip(), "the note")
    try:
        if words:
            write_atomically(path, f"{words}\n")
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def _note_file(name: str, data_dir: Path) -> Path:
    return data_dir / f"{name}.note"


def _one_line(words: str, where: str) -> str:
    if len(words) > NOTE_LETTERS or not words.isprintable():
        raise UserError(f"{where} must be one line of at most {NOTE_LETTERS} letters")
    return words
