"""An authorizer for Jupyter servers under test: everything but switching the policy."""

from __future__ import annotations

from typing import Any

from jupyter_server.auth import Authorizer

OPTIONS = ("--ServerApp.authorizer_class=tests.support.readers.Readers",)


class Readers(Authorizer):  # type: ignore[misc]
    """People who may use the pool and may not rule it."""

    def is_authorized(self, _handler: Any, _user: Any, action: str, resource: str) -> bool:
        return (action, resource) != ("write", "jupyter_elastic:policy")
