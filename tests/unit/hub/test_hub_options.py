"""What the service of a Hub refuses to start with, and how it reads scopes."""

from __future__ import annotations

import pytest

from jupyter_elastic.hub import __main__ as service


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--url", "https://x:1"], "expected http://address:port"),
        (["--url", "http://x:99999"], "expected http://address:port"),
        (["--prefix", "services"], "expected a path as /services/elastic/"),
        (["--prefix", "/a(b)/"], "expected a path as /services/elastic/"),
        (["--address", "0.0.0.0:7000"], "expected tcp://host:port"),
        (["--address", "tcp://*:7000"], "expected tcp://host:port"),
        (["--term", "5"], "expected seconds from 60"),
        (["--term", "nan"], "expected seconds from 60"),
        (["--check", "31"], "expected seconds from 1 to 30"),
    ],
)
def test_what_makes_no_sense_ends_with_2(words: list[str], said: str, capsys, monkeypatch) -> None:
    for name in ("JUPYTERHUB_SERVICE_URL", "JUPYTERHUB_SERVICE_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    assert service.main(words) == 2
    assert said in capsys.readouterr().err


def test_a_process_that_is_no_hubs_service_says_so(capsys, monkeypatch) -> None:
    auth = pytest.importorskip("jupyterhub.services.auth")
    for name in ("API_TOKEN", "CLIENT_ID", "SERVICE_NAME", "OAUTH_ACCESS_SCOPES", "SERVICE_URL", "SERVICE_PREFIX"):
        monkeypatch.delenv(f"JUPYTERHUB_{name}", raising=False)
    auth.HubOAuth.clear_instance()
    assert service.main([]) == 2
    assert "this is no service of a JupyterHub" in capsys.readouterr().err
    auth.HubOAuth.clear_instance()


def test_a_scope_with_a_filter_counts_for_whom_it_names(monkeypatch) -> None:
    auth = pytest.importorskip("jupyterhub.services.auth")
    from jupyter_elastic.hub.visitors import visitor

    auth.HubOAuth.clear_instance()
    monkeypatch.setenv("JUPYTERHUB_SERVICE_NAME", "elastic")
    access, own = "access:services!service=elastic", "custom:jupyter-elastic:"
    scopes = [access, f"{own}submit!user=ada", f"{own}administer!user=bob", f"{own}policy!group=x", f"{own}see-allx"]
    model = {"name": "ada", "kind": "user", "scopes": scopes, "groups": ["g"]}
    found = visitor(model, "t")
    assert found is not None
    assert (found.rights, found.groups, found.sees_all) == (("submit",), ("g",), False)
    assert visitor({**model, "kind": "service"}, "t").rights == ()
    assert visitor({**model, "scopes": [f"{own}administer"]}, "t") is None
    assert visitor({**model, "scopes": ["access:services!service=other", f"{own}administer"]}, "t") is None
    assert visitor({**model, "scopes": ["access:services", f"{own}see-all"]}, "t").sees_all
    auth.HubOAuth.clear_instance()
