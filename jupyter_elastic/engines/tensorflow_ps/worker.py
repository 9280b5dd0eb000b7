"""The worker's half of the engine `tensorflow_ps`: a process becomes the coordinator, or a server until it is killed.

Imports TensorFlow where a server starts; the cell imports it in the coordinator.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from jupyter_elastic.engines.tensorflow_ps.roles import task
from jupyter_elastic.jobfiles.payload import read_payload
from jupyter_elastic.platform import network_namespace
from jupyter_elastic.platform.imports import after_import
from jupyter_elastic.protocol.worker_messages import Entered, Started
from jupyter_elastic.types.errors import BadRequest, EngineError, ProtocolError

if TYPE_CHECKING:
    from jupyter_elastic.worker.plugin import WorkerFacilities

NETWORK = "JUPYTER_ELASTIC_NETWORK"
"""Variable with the cluster's network (`platform.network_namespace`); without it, the machine's network is used."""


FILLED_BYTES = 1024**2
"""Bytes from which a variable that begins with one value everywhere gets it from its server, not the coordinator."""

_KERAS = re.compile(r"(?<!tf_)\bkeras\b")
_LEGACY = (
    "Leave it out, or take tf-keras, which has it: `pip install tf-keras`, and TF_USE_LEGACY_KERAS=1 for the cell "
    "(`%%distribute --env TF_USE_LEGACY_KERAS=1`)."
)


class ClusterWorker:
    """One process of a cluster."""

    groups = None
    """No groups: for `training` a coordinator trains alone, as its workers run no cell."""
    preimports: ClassVar[Mapping[str, Sequence[str]]] = {}

    def __init__(self, host: WorkerFacilities) -> None:
        self._host = host
        self._entered = False

    def install(self) -> None:
        """Move into the cluster's network; a server never returns, a coordinator when all servers listen."""
        start = self._host.channel.start
        config = start.env["TF_CONFIG"]
        own, address = task(config)
        if paths := start.env.get(NETWORK):
            try:
                network_namespace.enter(paths)
            except OSError as problem:
                raise EngineError(f"this process can't move into its cluster's network: {problem}") from problem
        if own.type != "worker":
            os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
        if own.type != "chief":
            self._serve(own.type, own.index, address)
        os.environ["TF_CONFIG"] = config
        self._host.channel.listen()
        self._host.channel.rendezvous("init", has_state=False)
        if start.restarts:
            roles = json.loads(config)["cluster"]
            shape = f"workers: {len(roles['worker'])}, servers: {len(roles['ps'])}"
            sys.stderr.write(f"note: the cell begins again with what it has saved ({shape})\n")
        self._host.session.at_boundary = self._boundary
        after_import("tensorflow", self._check_strategy)
        after_import("keras", _refuse_fit)

    def _serve(self, role: str, index: int, address: str) -> NoReturn:
        import tensorflow as tf

        # A server needs to know itself alone: the coordinator tells it the others.
        alone = tf.train.ClusterSpec({role: {index: address}})
        self._server = tf.distribute.Server(alone, job_name=role, task_index=index, protocol="grpc", start=True)
        channel = self._host.channel
        channel.listen()  # the channel ends this process when the driver is gone
        channel.send(Started())
        channel.rendezvous("init", has_state=False)  # never answered: this process serves until it is killed
        raise ProtocolError("a server was let into a group")

    def _boundary(self) -> None:
        """Let the driver change the cluster, if it wants to: all that the cell needs to go on is saved."""
        channel = self._host.channel
        if not self._entered:
            self._entered = True
            channel.send(Entered())
        if channel.update_requested.is_set():
            channel.rendezvous("run", has_state=True)  # a change ends this process here

    def _check_strategy(self, tf: types.ModuleType) -> None:
        """Refuse a cluster of the cell's own, beside which the job's would be idle, and what Keras 3 can't do."""
        source = read_payload(Path(self._host.channel.start.folder)).source
        keras_3 = _KERAS.search(source) and os.environ.get("TF_USE_LEGACY_KERAS", "").lower() not in {"1", "true"}
        job = tf.train.ClusterSpec(json.loads(self._host.channel.start.env["TF_CONFIG"])["cluster"])
        begin = tf.distribute.ParameterServerStrategy.__init__

        @functools.wraps(begin)
        def checked(
            strategy: Any, cluster_resolver: Any = None, variable_partitioner: Any = None, **options: Any
        ) -> None:
            if keras_3 and variable_partitioner is not None:
                raise BadRequest(f"Keras 3 has no variables that are split over several servers. {_LEGACY}")
            if cluster_resolver is not None and cluster_resolver.cluster_spec().as_dict() != job.as_dict():
                raise BadRequest(
                    "this cell gives ParameterServerStrategy a cluster of its own, so the job's workers and servers "
                    "would have nothing to do. Leave out what makes it, and take the job's: "
                    "cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()"
                )
            begin(strategy, cluster_resolver, variable_partitioner, **options)
            _fill_on_servers(tf, strategy)

        tf.distribute.ParameterServerStrategy.__init__ = checked


def _fill_on_servers(tf: types.ModuleType, strategy: Any) -> None:
    """Let servers make `zeros`, `ones` and the like: a resize makes all variables anew, only to overwrite them."""
    create = strategy.extended._create_variable

    @functools.wraps(create)
    def filled(next_creator: Any, **options: Any) -> Any:
        value: Any = options.get("initial_value")
        dtype = options.get("dtype")
        if isinstance(value, tf.__internal__.EagerTensor):
            value = value.numpy()
        if getattr(value, "nbytes", 0) < FILLED_BYTES or options.get("shape") is not None:
            return create(next_creator, **options)
        kind, one, shape = tf.as_dtype(value.dtype), value.flat[0], value.shape
        number = kind.is_floating or kind.is_integer
        if number and (dtype is None or tf.as_dtype(dtype) == kind) and (value == one).all():

            def fill(partition_shape: Any = shape, partition_offset: Any = None) -> Any:  # noqa: ARG001 - of TensorFlow
                return tf.fill(partition_shape, tf.constant(one, kind))

            options |= {"initial_value": fill, "dtype": kind, "shape": shape}
        return create(next_creator, **options)

    strategy.extended._create_variable = filled


def _refuse_fit(keras: types.ModuleType) -> None:
    """Refuse Keras 3's `fit`: it can't make a data set for each worker of a cluster, and says so in other words."""
    if keras.__version__ < "3":
        return
    plain = keras.Model.fit

    @functools.wraps(plain)
    def fit(model: Any, *args: Any, **options: Any) -> Any:
        if type(getattr(model, "distribute_strategy", None)).__name__.startswith("ParameterServerStrategy"):
            raise BadRequest(
                "Keras 3 has no `fit` under ParameterServerStrategy: write the loop (`coordinator.schedule`), or take "
                "tf-keras, whose `fit` works there: `pip install tf-keras`, and TF_USE_LEGACY_KERAS=1 for the cell "
                "(`%%distribute --env TF_USE_LEGACY_KERAS=1`)."
            )
        return plain(model, *args, **options)

    keras.Model.fit = fit
