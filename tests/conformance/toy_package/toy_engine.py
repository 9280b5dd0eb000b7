"""Engine `toy`: whoever writes an engine begins here. Its groups add up over sockets, in a star around rank 0."""

import time
from multiprocessing.connection import Client, Listener

import torch

from jupyter_elastic.engines.common.group_engine import GroupEngine
from jupyter_elastic.engines.common.group_worker import GroupWorker, WorkerGroup
from jupyter_elastic.training.group import PeerLost
from jupyter_elastic.types.capabilities import Capabilities


class Toy(GroupEngine):
    """The driver's half."""

    name = "toy"
    capabilities = Capabilities(forms_groups=True, resumable=True, worker="toy_engine:ToyWorker")

    async def rendezvous(self, go):
        return str(self.context.folder / f"toy.{go.round}")


class ToyWorker(GroupWorker):
    """The worker's half."""

    def __init__(self, host):
        super().__init__(host)
        self.groups = ToyGroup(self)


class ToyGroup(WorkerGroup):
    """The collectives."""

    links = ()

    def connect(self, go):
        path = self._worker.decoded(go, str)
        if go.rank == 0:
            with Listener(path, "AF_UNIX", backlog=64) as listener:
                self.links = [listener.accept() for _ in range(go.size - 1)]
        else:
            self.links = [_reach(path)]

    def disconnect(self):
        for link in self.links:
            link.close()
        self.links = ()

    def broadcast(self, data):
        return self._merged(data, lambda gathered: gathered[0])

    def total(self, values):
        return self._merged(values, sum)

    def allreduce(self, tensors, *, name, mean=False):
        sums = [torch.as_tensor(self.total(tensor.numpy())) for tensor in tensors]
        return [added / self.size() for added in sums] if mean else sums

    def _merged(self, mine, merge):
        try:
            if self.rank() == 0:
                merged = merge([mine, *(link.recv() for link in self.links)])
                for link in self.links:
                    link.send(merged)
                return merged
            self.links[0].send(mine)
            return self.links[0].recv()
        except (EOFError, OSError) as error:
            raise PeerLost(str(error)) from error


def _reach(path):
    while True:
        try:
            return Client(path, "AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.002)
