"""Forgets packages that pip was killed in the middle of, so that it installs them again.

When all files of a package are copied pip adds one that names the installer, and then the RECORD which lists that too.
A package of which only a part is there it takes for installed all the same: only when its `.dist-info` is gone is it
installed anew, over what is there.
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path


def forget(site: Path) -> list[str]:
    """Forget what is half installed in this folder of packages; its names."""
    found = [info for info in site.glob("*.dist-info") if not _whole(info)]
    for info in found:
        shutil.rmtree(info)
    for rest in site.glob("~*"):  # what pip moved aside to put something newer in its place
        shutil.rmtree(rest, ignore_errors=True)
    return [info.name.partition("-")[0] for info in found]


def _whole(info: Path) -> bool:
    try:
        return "/INSTALLER," in (info / "RECORD").read_text()
    except OSError:
        return False


if __name__ == "__main__":
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for name in forget(Path(place)):
            print(f"{name} was half installed and is installed again")
