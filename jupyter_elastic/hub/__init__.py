"""The process beside the daemon that speaks HTTP and admits the users of a JupyterHub: `jupyter elastic admin hub`."""

from jupyter_elastic.hub.agent_unit import start_agent_unit
from jupyter_elastic.hub.configure import configure

__all__ = ["configure", "start_agent_unit"]
