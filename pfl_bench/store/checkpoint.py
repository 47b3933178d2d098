"""One checkpoint file: tensors and their meta data in safetensors, verified when read.

The header carries a sealed list of every tensor's type, shape and CRC-32. CRC-32 because the enemy
is a torn write or a flipped bit, not a forger: measured on one core it runs at about 4 GB/s, where
SHA-256 runs at 1.5 GB/s even with hardware support, and writing to disk at 0.3 GB/s.
Which checkpoints are kept, and which one a run resumes from, is decided in `writer`.
"""

from __future__ import annotations

import functools
import json
import os
import re
import zlib
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pfl_bench.base import IrregularFile, open_regular, replacing
from pfl_bench.store.records import DamagedError, seal, unseal

if TYPE_CHECKING:
    import torch

_FIELD = "pfl_bench"
_LARGEST_HEADER = 100_000_000
"""In bytes, as the format's own library has it."""


class DamagedCheckpoint(DamagedError):
    """A checkpoint that is cut, altered or not one of ours."""


def write(path: Path, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
    """Put `tensors` and JSON-able `meta` at `path`, on disk and whole when this returns."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    separate = _separate(tensors)
    envelope = seal({"meta": meta, "tensors": _contents(separate)})
    with replacing(path) as temporary:
        try:
            save_file(separate, temporary, metadata={_FIELD: envelope})
        except SafetensorError as error:
            raise _as_os_error(error) from error


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors (contiguous, on the CPU) and meta data; raises `DamagedCheckpoint` unless both are
    bit for bit what was written."""
    from safetensors.torch import load

    try:
        with open_regular(path, largest()) as file:
            envelope = unseal(_header(file)["__metadata__"][_FIELD])
            # Read rather than mapped: a mapped file that is cut short kills the process.
            file.seek(0)
            tensors = load(file.read())
    except IrregularFile as error:
        raise DamagedCheckpoint(str(error.strerror)) from error
    except (MemoryError, OSError):
        raise
    except Exception as error:  # the parsers raise what they like on arbitrary bytes
        raise DamagedCheckpoint(f"unreadable: {error}") from error
    if envelope.get("tensors") != _contents(tensors):
        raise DamagedCheckpoint("its tensors do not match their checksums")
    if not isinstance(envelope.get("meta"), dict):
        raise DamagedCheckpoint("it does not say what it is")
    return tensors, envelope["meta"]


@functools.cache
def largest() -> int:
    """The bytes that a checkpoint may have: no more than the machine has memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**36


def _header(file: BufferedReader) -> dict[str, Any]:
    """The head of a file that is as long as it says, so that no more is read of any other."""
    length = int.from_bytes(file.read(8), "little")
    if length > _LARGEST_HEADER:
        raise DamagedCheckpoint("its header is too long")
    header = json.loads(file.read(length))
    ends = [0, *(about["data_offsets"][1] for name, about in header.items() if name[:2] != "__")]
    if 8 + length + max(ends) != os.fstat(file.fileno()).st_size:
        raise DamagedCheckpoint("it is not as long as it says")
    return header


def _as_os_error(error: Exception) -> OSError:
    """The system's error, of which the library passes on only the text."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else OSError(str(error))


def _separate(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Contiguous CPU tensors no two of which share memory, which the format does not allow."""
    taken: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        if plain.untyped_storage().data_ptr() in taken:
            plain = plain.clone()
        taken.add(plain.untyped_storage().data_ptr())
        separate[name] = plain
    return separate


def _contents(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Type, shape and checksum of each tensor."""
    return {
        name: [str(tensor.dtype), list(tensor.shape), _crc32(tensor)]
        for name, tensor in tensors.items()
    }


def _crc32(tensor: torch.Tensor) -> int:
    import torch

    return zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data) if tensor.numel() else 0
