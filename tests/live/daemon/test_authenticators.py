"""An authenticator of another package, written by its guide: real sockets, and users who are not the pool's owner."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from jupyter_elastic.platform import endpoints, paths, private_files
from jupyter_elastic.protocol import wire
from jupyter_elastic.types.errors import BadRequest, NotAllowed
from tests.support.guides import follow, python
from tests.support.other_user import needs_root, other_user

TRIES = """
import sys
from jupyter_elastic.client import Client
from jupyter_elastic.protocol import wire
from jupyter_elastic.types import JobSpec
from jupyter_elastic.types.errors import DaemonUnreachable, ElasticError
client = Client(sys.argv[1], timeout_s=20)
spec = JobSpec(name="n", folder="/tmp/none", python=sys.executable, min_slots=1, max_slots=1)
for ask in (wire.Ping(), wire.SubmitJob(spec=spec, key="k" + sys.argv[1]), wire.CancelJob(job=1), wire.Shutdown()):
    try:
        print(type(client.ask(ask)).__name__, getattr(client.welcome, "user", ""))
    except ElasticError as problem:
        print(type(problem).__name__, str(problem).splitlines()[0])
        if isinstance(problem, DaemonUnreachable):
            break
client.close()
"""


@needs_root
def test_by_the_guide_another_user_is_let_in_by_a_key_and_kept_out_by_name(pool, open_folder, tmp_path, spec) -> None:
    with other_user() as other:
        follow("write-an-authenticator", "lab_directory", tmp_path)
        python(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_0.py")
        secret = open_folder / "secret.key"
        os.chown(open_folder, other.uid, other.uid)
        key = _key_of(other, secret)
        directory = tmp_path / "directory.json"
        pool.start(
            "--socket", f"{open_folder}/s", "--tcp", "tcp://127.0.0.1:0",
            *(word for name in ("unix", "keys", "lab") for word in ("--authenticator", name)),
            env={"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}", "LAB_DIRECTORY": str(directory)},
        )  # fmt: skip
        remote = private_files.read_json(paths.state_dir() / "remote.json", endpoints.Endpoint)
        by_key = open_folder / "by-key.json"
        by_key.write_text(
            json.dumps({"endpoint": remote.endpoint, "server_key": remote.server_key, "secret_file": str(secret)})
        )
        os.chown(by_key, other.uid, other.uid)
        by_name = f"ipc://{open_folder}/s"

        def told(where: str) -> list[str]:
            process = other.start("-c", TRIES, where, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors
            return out.splitlines()

        directory.write_text(json.dumps({"keys": {key: "ada"}, "locked": []}))
        owner = pool.client()
        owner.submit(spec)
        ping, submitted, cancel, shutdown = told(str(by_key))
        assert (ping, submitted) == ("Done ada", "Submitted ada")
        assert cancel.startswith("NotAllowed job 1 belongs to root")
        assert shutdown.startswith("NotAllowed this daemon runs as root")
        assert told(by_name)[0] == f"Done #{other.uid}", "an authenticator that does not know a user changes nothing"
        with pytest.raises(BadRequest, match="without --authenticator hub"):
            owner.ask(wire.RegisterKey(key=key, user="eve", term_s=60.0))

        directory.write_text(json.dumps({"keys": {key: "root"}, "locked": [other.uid]}))
        assert "refused this client's key" in told(str(by_key))[0]
        assert told(by_name) == ["NotAllowed your account is locked; ask the help desk"] * 4

        directory.write_text("no JSON")
        assert "refused this client's key" in told(str(by_key))[0]
        failed = told(by_name)
        assert len(failed) == 4
        assert all(line.startswith("NotAllowed the pool's authenticator lab could not judge") for line in failed)
        with pytest.raises(NotAllowed, match="could not judge"):
            pool.client(endpoint=by_name).ask(wire.Ping())


def _key_of(user, secret: Path) -> str:
    """The public key of a pair that the user makes."""
    code = "import sys; from jupyter_elastic.platform import endpoints; print(endpoints.client_key(sys.argv[1])[0])"
    process = user.start("-c", code, str(secret), stdout=subprocess.PIPE)
    return process.communicate(timeout=60)[0].strip()
