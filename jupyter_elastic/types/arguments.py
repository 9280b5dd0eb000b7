"""The command lines of programs that end with a `BadRequest` as for any other bad input, and not in argparse's way."""

from __future__ import annotations

import argparse
from typing import NoReturn

from jupyter_elastic.types.errors import BadRequest


class ArgumentParser(argparse.ArgumentParser):
    """Raises BadRequest, with the usage, where argparse would print it and exit."""

    def error(self, message: str) -> NoReturn:
        """Refuse what was given."""
        raise BadRequest(f"{message}\n{self.format_usage().strip()}")
