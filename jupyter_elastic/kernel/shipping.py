"""Implements `--with DIR`: a cell's workers run in that folder, on other hosts in a copy of it."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace
from rich.filesize import decimal as human

from jupyter_elastic.jobfiles import folder_copy
from jupyter_elastic.kernel.capture import Package
from jupyter_elastic.types.errors import BadRequest


def with_folder(package: Package, given: str) -> Package:
    """Return the package with that folder; unchanged when none is given. BadRequest when it can't travel."""
    if not given:
        return package
    folder = Path(given).expanduser().absolute().resolve()
    if not folder.is_dir():
        what = "it is a file: name the folder that it is in" if folder.exists() else "there is no such folder"
        raise BadRequest(f"--with {given}: {what}. Nothing was queued.")
    packed = folder_copy.pack(folder)
    left = f", without {', '.join(packed.left_out)}" if packed.left_out else ""
    note = f"workers on other hosts get a copy of {folder}: {packed.files} file(s), {human(len(packed.data))}{left}"
    path = tuple(dict.fromkeys([str(folder), *package.payload.sys_path]))
    payload = replace(package.payload, workdir=str(folder), sys_path=path, copied=packed.digest)
    return replace(package, payload=payload, folder_copy=packed.data, notes=(*package.notes, note))
