"""Parse command lines with errors raised as `BadRequest`, like any other bad input, instead of argparse's exit."""

from __future__ import annotations

import argparse
from typing import NoReturn

from jupyter_elastic.types.errors import BadRequest


class ArgumentParser(argparse.ArgumentParser):
    """A parser that raises BadRequest, with the usage, where argparse would print it and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise BadRequest for the given arguments."""
        raise BadRequest(f"{message}\n{self.format_usage().strip()}")
