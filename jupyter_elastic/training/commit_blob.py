"""The form of a commit: bytes, in which large arrays lie as they are, so that packing or unpacking copies once. Pure.

Behind the lengths of all sections come the plain values, as a pickle of their own, the parts of frameworks, and the
memory of their arrays.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from typing import Any, TypeAlias

import cloudpickle

from jupyter_elastic.types.errors import EngineError

MAGIC = b"jupyter-elastic commit 2\n"
_NUMBER = struct.Struct("<Q")
Bytes: TypeAlias = bytes | memoryview


def pack(plain: bytes, parts: Any) -> list[Bytes]:
    """Return the commit, in pieces, of pickled plain values and of parts that are still to be pickled.

    The pieces are the memory of the parts' own arrays: join or write them before the training goes on.
    """
    arrays: list[pickle.PickleBuffer] = []
    body = cloudpickle.dumps(parts, protocol=5, buffer_callback=arrays.append)
    sections = [plain, body, *(array.raw() for array in arrays)]
    return [MAGIC, *map(_NUMBER.pack, [len(sections), *map(len, sections)]), *sections]


def plain(commit: Bytes) -> bytes | None:
    """Return the pickled plain values of a commit; None for bytes of another form."""
    return bytes(next(_sections(commit))) if commit[: len(MAGIC)] == MAGIC else None


def unpack(commit: Bytes) -> tuple[Any, Any]:
    """Return the plain values and the parts, all of them writable; the commit stays as it is.

    Raises:
        EngineError: The commit has another form, as an older version made it.
    """
    if commit[: len(MAGIC)] != MAGIC:
        raise EngineError("The commit of this job was made by another version of this package. Submit the cell anew.")
    sections = _sections(commit)
    # The job's own commit, from its own folder or its own rank 0:
    values = pickle.loads(next(sections))  # noqa: S301
    return values, pickle.loads(next(sections), buffers=map(bytearray, sections))  # noqa: S301


def _sections(commit: Bytes) -> Iterator[memoryview]:
    view = memoryview(commit)[len(MAGIC) :]
    (count,) = _NUMBER.unpack_from(view)
    begin = _NUMBER.size * (count + 1)
    for number in range(1, count + 1):
        (length,) = _NUMBER.unpack_from(view, _NUMBER.size * number)
        yield view[begin : begin + length]
        begin += length
