"""The Jupyter server's side: REST and WebSocket under `/elastic/api`, for panel and renderer. Decides nothing.

The server runs as the notebook's user; it is one more client of the daemon and folds events with the same models as the
kernel does.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    from jupyter_elastic.server_ext.extension import ElasticApp

    return [{"module": "jupyter_elastic.server_ext", "app": ElasticApp}]
