"""Which tests run only when everything is tested."""

from __future__ import annotations

import os

import pytest

everything = pytest.mark.skipif(
    not os.environ.get("JUPYTER_ELASTIC_TEST_EVERYTHING"), reason="JUPYTER_ELASTIC_TEST_EVERYTHING"
)
