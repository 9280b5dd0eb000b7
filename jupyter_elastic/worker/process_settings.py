"""Sets what a cell finds in its process: the job's variables, device, threads, import path, arguments and folder.

Knows the driver's order and the payload; must not know the group or the cell's names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jupyter_elastic.jobfiles.payload import Payload
from jupyter_elastic.platform import reachability
from jupyter_elastic.platform.imports import forget_shadowed
from jupyter_elastic.protocol.slot_agent_messages import Enter
from jupyter_elastic.protocol.worker_messages import LOOPBACK, Start
from jupyter_elastic.types.errors import ElasticError
from jupyter_elastic.worker import device_access, torchrun_environment


def set_up(order: Start, payload: Payload) -> None:
    """Enter the slot's control group, and set the variables, the device and the thread count."""
    if order.visible:  # before anything could open a device
        asked = Enter(order.job, order.attempt, order.slot)
        if problem := device_access.enter(asked):
            sys.stderr.write(f"jupyter-elastic: the machine's slot agent has refused this worker: {problem}\n")
    set_variables(order, payload)
    if order.visible:
        os.environ["CUDA_VISIBLE_DEVICES"] = order.visible
    _limit_threads()


def follow_notebook(order: Start, payload: Payload) -> None:
    """Set the group's network interface, and the import path, arguments and folder of the notebook."""
    if order.address != LOOPBACK:
        name = reachability.interface(order.address)
        for variable in {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} - payload.env.keys():
            os.environ[variable] = name
    ours = [_here(entry, order, payload) for entry in payload.sys_path]
    sys.path[:] = [*ours, *(entry for entry in sys.path if entry not in ours)]
    if payload.argv:
        forget_shadowed(sys.path[0])
    sys.argv = [*payload.argv] or [payload.label or payload.filename]
    if payload.workdir:
        try:
            os.chdir(_here(payload.workdir, order, payload))
        except OSError as problem:
            raise ElasticError(f"the notebook's folder can't be entered: {problem}") from problem


def set_variables(order: Start, payload: Payload) -> None:
    """Set the variables of the job and of its cell, and keep the job's own addresses from proxies."""
    of_job = dict(order.env)
    hosts = of_job.pop("no_proxy", "").split(",")
    os.environ.update({**of_job, **payload.env})
    os.environ.update(torchrun_environment.no_proxy(os.environ, (*hosts, order.master, order.address)))


def _here(path: str, order: Start, payload: Payload) -> str:
    """Return a path on this host: a path below the folder that the cell runs in becomes one in this host's copy."""
    if not order.copy or not Path(path).is_relative_to(payload.workdir):
        return path
    return str(Path(order.copy, Path(path).relative_to(payload.workdir)))


def _limit_threads() -> None:
    """Set the thread count of frameworks that are loaded already: they don't read the environment any more."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    torch = sys.modules.get("torch")
    if torch is not None and threads.isdecimal():
        torch.set_num_threads(int(threads))
