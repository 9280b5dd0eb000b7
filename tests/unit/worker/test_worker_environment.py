"""What a worker finds in its environment where nobody has chosen: threads by slots, and no proxy to its own job."""

from __future__ import annotations

import urllib.request

import pytest

from jupyter_elastic.forkserver import forked_workers
from jupyter_elastic.jobfiles.submit_environment import environment as sent
from jupyter_elastic.worker import torchrun_environment

ALL = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_MAX_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "LOKY_MAX_CPU_COUNT",
    "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
)  # fmt: skip


def test_every_library_with_a_switch_has_one_thread_on_a_slot_of_one_core() -> None:
    assert forked_workers.default_threads({}, gpu=False) == dict.fromkeys(ALL, "1")
    assert forked_workers.default_threads({}, gpu=True) == {}


@pytest.mark.parametrize(
    ("chosen", "left"),
    [
        ({"POLARS_MAX_THREADS": "4"}, {"POLARS_MAX_THREADS"}),
        ({"NUMEXPR_NUM_THREADS": "4"}, {"NUMEXPR_MAX_THREADS"}),
        # BLAS libraries follow OpenMP's number where they have none of their own.
        ({"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS", *ALL[1:5]}),
        ({"MKL_NUM_THREADS": "4", "NUMBA_NUM_THREADS": "8"}, {"MKL_NUM_THREADS", "NUMBA_NUM_THREADS"}),
    ],
)
def test_what_somebody_has_chosen_stays(chosen: dict[str, str], left: set[str]) -> None:
    assert forked_workers.default_threads(chosen, gpu=False).keys() == set(ALL) - left


def test_what_libraries_of_the_notebook_are_told_is_sent() -> None:
    told = {
        "NUMBA_CACHE_DIR": "/c", "POLARS_MAX_THREADS": "2", "RAYON_NUM_THREADS": "2", "LOKY_PICKLER": "pickle",
        "VECLIB_MAXIMUM_THREADS": "2", "BLIS_NUM_THREADS": "2", "GRPC_VERBOSITY": "ERROR", "grpc_proxy": "http://p",
        "no_grpc_proxy": "h", "ALL_PROXY": "http://p", "all_proxy": "http://p", "JOBLIB_TEMP_FOLDER": "/j",
    }  # fmt: skip
    assert sent({**told, "MY_TOKEN": "1"}) == told


@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_the_jobs_own_addresses_are_reached_without_the_proxy(name: str) -> None:
    found = torchrun_environment.no_proxy(
        {name: "corp.example", "http_proxy": "http://p:9"}, ("10.0.0.7", "127.0.0.1", "")
    )
    assert found.keys() == {"no_proxy", "NO_PROXY"}
    for value in found.values():
        assert value.split(",")[0] == "corp.example"
        assert {"localhost", "127.0.0.1", "::1", "10.0.0.7"} <= set(value.split(","))
        assert "" not in value.split(",")
    for host, bypassed in {"10.0.0.7": True, "localhost:80": True, "corp.example": True, "other": False}.items():
        assert bool(urllib.request.proxy_bypass_environment(host, {"no": found["no_proxy"]})) is bypassed


def test_grpcs_own_variable_and_everything_excepted_keep_their_meaning() -> None:
    assert torchrun_environment.no_proxy({"no_proxy": "*"}, ("10.0.0.7",))["no_proxy"] == "*"
    # gRPC knows no `*`, and heeds no other list where it has one of its own.
    assert "10.0.0.7" in torchrun_environment.no_proxy({"no_proxy": "*"}, ("10.0.0.7",))["no_grpc_proxy"].split(",")
    own = torchrun_environment.no_proxy({"no_grpc_proxy": "a", "no_proxy": "b"}, ("10.0.0.7",))
    assert own["no_grpc_proxy"].startswith("a,")
    assert "10.0.0.7" in own["no_grpc_proxy"]
