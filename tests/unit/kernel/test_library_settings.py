"""Settings of the notebook that change results are said where the workers do not have them."""

from __future__ import annotations

import subprocess
import sys

import pytest

SET = {
    "torch.set_default_dtype(torch.float64)": "torch.set_default_dtype (torch.float64, there torch.float32)",
    "torch.set_float32_matmul_precision('medium')": "torch.set_float32_matmul_precision (medium, there highest)",
    "torch.use_deterministic_algorithms(True)": "torch.use_deterministic_algorithms (True, there False)",
    "np.set_printoptions(precision=3)": "np.set_printoptions (precision=3)",
    "np.seterr(all='raise')": "np.seterr (divide=raise over=raise invalid=raise)",
    "decimal.getcontext().prec = 6": "decimal.getcontext (6, there 28)",
    "logging.basicConfig(level='INFO')": "logging.basicConfig (INFO, there WARNING)",
    "warnings.filterwarnings('error')": "warnings.filterwarnings (True, there False)",
}


def after(imports: str, *texts: str) -> list[str]:
    """In a process of its own, which imports these: what each of these texts prints."""
    notes = "from jupyter_elastic.kernel.library_settings import notes"
    start = f"import {imports}\n{notes}\ndef say(cell=''): print(*notes(cell))"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([start, *texts])], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_settings_that_differ_are_said_in_one_line_and_not_those_that_the_cell_makes() -> None:
    pytest.importorskip("torch")
    first, note, made = after(
        "decimal, locale, logging, warnings, numpy as np, torch", "say()", *SET, "say()", f"say({' '.join(SET)!r})"
    )
    assert (first, made) == ("", "")
    for told in SET.values():
        assert told in note


def test_libraries_that_are_not_imported_are_left_alone() -> None:
    assert after("sys", "say()", "print('torch' in sys.modules)") == ["", "False"]
