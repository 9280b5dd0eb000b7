"""What `configure` makes of a JupyterHub's configuration, and what it refuses."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from traitlets.config import Config

from jupyter_elastic.hub import configure
from jupyter_elastic.platform import endpoints, paths
from jupyter_elastic.types.errors import BadRequest

SUBMIT, ADMINISTER = "custom:jupyter-elastic:submit", "custom:jupyter-elastic:administer"
ACCESS = "access:services!service=elastic"


@pytest.fixture(autouse=True)
def no_pool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's file, which is not there yet."""
    monkeypatch.delenv(endpoints.ENDPOINT_VARIABLE, raising=False)
    monkeypatch.delenv(paths.DIR_VARIABLE, raising=False)
    monkeypatch.setenv(endpoints.CONFIG_VARIABLE, str(tmp_path / "config.toml"))
    return tmp_path / "config.toml"


MANAGED = {"service": "managed", "service_user": "elastic"}


def test_users_of_the_machine_need_the_socket_and_kernels_that_nobody_else_reads() -> None:
    c = Config()
    configure(c, socket="/srv/s")
    assert c.Spawner.environment == {"JUPYTER_ELASTIC_ENDPOINT": "ipc:///srv/s"}
    assert c.Spawner.args == ["--KernelManager.transport_encryption=required"]
    assert not c.JupyterHub


def test_a_service_has_its_scopes_and_roles() -> None:
    c = Config()
    configure(c, socket="/srv/s", admins=["ada"], **MANAGED)
    assert c.Spawner.environment == {"JUPYTER_ELASTIC_ENDPOINT": "ipc:///srv/s"}
    (service,) = c.JupyterHub.services
    assert service["command"] == [sys.executable, "-m", "jupyter_elastic.hub"]
    assert (service["name"], service["url"], service["user"]) == ("elastic", "http://127.0.0.1:10101", "elastic")
    assert service["environment"]["JUPYTER_ELASTIC_ENDPOINT"] == "ipc:///srv/s"
    assert c.Spawner.server_token_scopes[:4] == ["users:activity!user", "access:servers!server", ACCESS, SUBMIT]
    assert ADMINISTER in c.Spawner.server_token_scopes
    assert c.JupyterHub.load_roles == [
        {"name": "user", "scopes": ["self", ACCESS, SUBMIT]},
        {"name": "jupyter-elastic-admin", "scopes": [ACCESS, ADMINISTER], "users": ["ada"]},
    ]
    assert len(c.JupyterHub.custom_scopes) == 4


def test_servers_in_containers_use_the_pool_by_the_service() -> None:
    c = Config()
    configure(c, socket="/srv/s", hub_url="https://hub.lab/jupyter/", address="tcp://172.17.0.1:7000", **MANAGED)
    assert c.Spawner.environment == {"JUPYTER_ELASTIC_ENDPOINT": "https://hub.lab/jupyter/services/elastic"}
    (service,) = c.JupyterHub.services
    assert service["command"][3:] == ["--address", "tcp://172.17.0.1:7000"]
    assert service["environment"]["JUPYTER_ELASTIC_ENDPOINT"] == "ipc:///srv/s"


def test_a_service_that_something_else_starts_has_the_token_that_is_given() -> None:
    c = Config()
    configure(c, socket="/srv/s", service="external", service_token="t" * 32)
    (service,) = c.JupyterHub.services
    assert service == {
        "name": "elastic",
        "url": "http://127.0.0.1:10101",
        "oauth_no_confirm": True,
        "api_token": "t" * 32,
    }


def test_what_is_there_is_kept_and_added_to_however_it_was_set() -> None:
    c = Config()
    c.Spawner.environment = {"LAB": "physics"}
    c.Spawner.args.append("--debug")
    c.Spawner.server_token_scopes = ["mine"]
    c.JupyterHub.custom_scopes.update({"custom:other": {"description": "d"}})
    c.JupyterHub.load_roles = [{"name": "user", "scopes": ["self", "read:groups"]}, {"name": "teacher"}]
    c.Authenticator.admin_users.update({"grace", "ada"})
    configure(c, socket="/srv/s", jobs_are_activity=True, **MANAGED)
    assert c.Spawner.environment["LAB"] == "physics"
    assert c.Spawner.args[0] == "--debug"
    assert "--ElasticApp.jobs_are_activity=True" in c.Spawner.args
    assert c.Spawner.server_token_scopes[0] == "mine"
    assert "custom:other" in c.JupyterHub.custom_scopes
    user, teacher, admin = c.JupyterHub.load_roles
    assert user["scopes"] == ["self", "read:groups", ACCESS, SUBMIT]
    assert teacher == {"name": "teacher"}
    assert admin["users"] == ["ada", "grace"]


def test_the_scopes_that_a_newer_hub_adds_to_its_users_stay() -> None:
    c = Config()
    c.JupyterHub.extra_user_scopes = ["read:groups"]
    configure(c, socket="/srv/s", **MANAGED)
    assert c.JupyterHub.extra_user_scopes == ["read:groups", ACCESS, SUBMIT]
    assert [role["name"] for role in c.JupyterHub.load_roles] == ["jupyter-elastic-admin"]


def test_the_pool_is_the_machines_where_none_is_given(no_pool_is_named, monkeypatch) -> None:
    def endpoint() -> str:
        c = Config()
        configure(c)
        return str(c.Spawner.environment["JUPYTER_ELASTIC_ENDPOINT"])

    assert endpoint() == "ipc:///run/jupyter-elastic/pool.sock"
    no_pool_is_named.write_text('socket = "/run/lab/s"\n')
    assert endpoint() == "ipc:///run/lab/s"
    monkeypatch.setenv("JUPYTER_ELASTIC_ENDPOINT", "ipc:///run/other/s")
    assert endpoint() == "ipc:///run/other/s"


def _twice(c: Config) -> None:
    configure(c, socket="/srv/s", **MANAGED)


def _a_scope_of_its_name(c: Config) -> None:
    c.JupyterHub.custom_scopes = {SUBMIT: {"description": "mine"}}


def _another_pool(c: Config) -> None:
    c.Spawner.environment = {"JUPYTER_ELASTIC_ENDPOINT": "ipc:///srv/other"}


def _readable_kernels(c: Config) -> None:
    c.Spawner.args = ["--KernelManager.transport_encryption=disabled"]


def _computed_scopes(c: Config) -> None:
    c.Spawner.server_token_scopes = lambda spawner: []


def _a_role_of_its_name(c: Config) -> None:
    c.JupyterHub.load_roles = [{"name": "jupyter-elastic-admin"}]


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (_twice, r"called elastic already: call configure\(\) once"),
        (_a_scope_of_its_name, f"custom_scopes has {SUBMIT} already"),
        (_another_pool, r"sets JUPYTER_ELASTIC_ENDPOINT to 'ipc:///srv/other', and configure\(\) to 'ipc:///srv/s'"),
        (_readable_kernels, "transport_encryption=disabled.*remove the first"),
        (_computed_scopes, f"is a function: let it return {ACCESS}, {SUBMIT}"),
        (_a_role_of_its_name, "give `admins`"),
    ],
)
def test_what_contradicts_it_is_refused_with_what_to_do(before, message: str) -> None:
    c = Config()
    before(c)
    with pytest.raises(BadRequest, match=message):
        configure(c, socket="/srv/s", **MANAGED)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"service": "mine"}, "'managed' or 'external'"),
        ({"service": "external"}, "service_token of 32 characters or more"),
        ({"service": "external", "service_token": "t" * 32, "service_user": "ada"}, "are for service='managed'"),
        ({"service_token": "t" * 32}, "is for service='external'"),
        ({"hub_url": "https://hub.lab"}, "say service='managed' too"),
        ({"hub_url": "hub.lab", **MANAGED}, "as https://hub.example.org"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(given, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        configure(Config(), socket="/srv/s", **given)


def test_a_hub_of_root_is_told_to_run_its_service_as_somebody_else(monkeypatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    with pytest.raises(BadRequest, match="would run as root"):
        configure(Config(), socket="/srv/s", service="managed")


@pytest.mark.parametrize("socket", ["run/s", "ipc:///run/s", "~/s"])
def test_a_socket_that_is_no_path_is_refused(socket: str) -> None:
    with pytest.raises(BadRequest, match="absolute path"):
        configure(Config(), socket=socket)


def test_a_setting_that_there_is_not_is_refused() -> None:
    with pytest.raises(TypeError, match="sokcet"):
        configure(Config(), sokcet="/srv/s")


def test_it_is_imported_without_the_hub_and_what_the_service_needs() -> None:
    code = (
        "import sys; sys.modules['jupyterhub'] = None; from jupyter_elastic.hub import configure; "
        "print([name for name in ('tornado', 'zmq') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_the_page_names_every_setting_and_files_that_the_wheel_brings() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "jupyterhub.md").read_text()
    settings = set(inspect.signature(configure).parameters) - {"c"}
    assert {
        name for row in page.splitlines() if row.startswith("| `") for name in re.findall(r"`(\w+)=", row)
    } == settings
    data = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "shared-data"
    ]
    (brought,) = re.findall(r"/opt/jupyter-elastic/(share/\S+)", page)
    assert (root / next(ours for ours, theirs in data.items() if theirs == brought)).is_file()
