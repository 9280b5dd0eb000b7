"""Selects what workers take over from the submitting process: environment variables and Python's module path."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_ENV_NAMES = frozenset({
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "LOGNAME", "MPLBACKEND",
    "MPLCONFIGDIR", "PATH", "PYTHONHASHSEED",
    "PYTHONPATH", "PYTHONWARNINGS", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "ALL_PROXY", "all_proxy",
    "grpc_proxy", "no_grpc_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
})  # fmt: skip
SENT_STARTS = (
    "LC_", "CONDA_", "XDG_", "CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "GLOO_", "HOROVOD_", "OMP_", "MKL_", "OPENBLAS_",
    "NUMEXPR_", "KMP_", "TF_", "TF2_", "KERAS_", "XLA_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TRITON_", "HF_",
    "TRANSFORMERS_", "TOKENIZERS_", "WANDB_", "MLFLOW_", "TENSORBOARD_", "AWS_", "GOOGLE_", "AZURE_", "DATABRICKS_",
    "NUMBA_", "POLARS_", "RAYON_", "LOKY_", "JOBLIB_", "BLIS_", "VECLIB_", "ARROW_", "GRPC_",
)  # fmt: skip
NOT_SENT = frozenset({
    "CUDA_VISIBLE_DEVICES", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_HOSTNAME", "HOROVOD_ELASTIC",
})  # fmt: skip
"""Variables that the engine sets for each worker; the process's own values would be wrong there."""


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are sent to workers: those that change how libraries are found or behave."""
    return {
        name: value
        for name, value in environ.items()
        if name not in NOT_SENT and (name in _ENV_NAMES or name.startswith(SENT_STARTS))
    }


def search_path() -> tuple[str, ...]:
    """Return `sys.path` with absolute entries."""
    here = str(Path.cwd())
    return tuple(dict.fromkeys(entry if entry.startswith(os.sep) else str(Path(here, entry)) for entry in sys.path))
