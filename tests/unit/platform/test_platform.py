"""Folders, connection files, locks."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_elastic.platform import endpoints, paths, peer, private_files, processes
from jupyter_elastic.platform.lock import Lock
from jupyter_elastic.types.errors import BadRequest, DaemonUnreachable, NotAllowed


def test_folders_are_closed_to_others(pool_dir: Path) -> None:
    pool_dir.mkdir(mode=0o755, parents=True)
    for folder in (paths.state_dir(), paths.runtime_dir(), paths.jobs_dir()):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert paths.state_dir() == pool_dir
    assert len(str(paths.socket_path())) < 60


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder in which Jupyter was never started; nothing says where the pool is."""
    for name in ("JUPYTER_ELASTIC_DIR", "JUPYTER_DATA_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_pool_lies_in_jupyters_data_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from jupyter_core.paths import jupyter_data_dir

    assert paths.state_dir() == Path(jupyter_data_dir(), "elastic")
    assert paths.state_dir().is_relative_to(home)
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "xdg"))
    assert paths.state_dir() == Path(jupyter_data_dir(), "elastic")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(home / "data"))
    assert paths.state_dir() == home / "data" / "elastic"
    monkeypatch.setenv("JUPYTER_ELASTIC_DIR", "~/pool")
    assert paths.state_dir() == home / "pool"


def test_a_pool_in_the_old_place_stays_there(home: Path) -> None:
    old = home / ".local/share/jupyter-elastic"
    old.mkdir(parents=True)
    assert paths.state_dir() == old
    old.rmdir()
    new = paths.state_dir()
    old.mkdir(parents=True, exist_ok=True)
    assert paths.state_dir() == new  # there was one before


def test_a_file_where_a_folder_should_be_is_named(pool_dir: Path) -> None:
    pool_dir.parent.mkdir(exist_ok=True)
    pool_dir.write_text("")
    with pytest.raises(BadRequest, match="JUPYTER_ELASTIC_DIR"):
        paths.state_dir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_folder_is_refused(pool_dir: Path) -> None:
    pool_dir.mkdir(parents=True)
    os.chown(pool_dir, 65534, 65534)
    with pytest.raises(NotAllowed, match="another user"):
        paths.state_dir()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link away")
def test_a_link_of_somebody_else_is_refused_even_if_it_leads_home(pool_dir: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    pool_dir.symlink_to(home)
    assert paths.state_dir() == pool_dir  # a link of one's own is a way to another disk
    os.chown(pool_dir, 65534, 65534, follow_symlinks=False)
    with pytest.raises(NotAllowed, match="another user"):
        paths.state_dir()


def test_two_pools_have_two_sockets(tmp_path: Path) -> None:
    assert paths.runtime_dir_of(tmp_path / "a") != paths.runtime_dir_of(tmp_path / "b")


def _squat_by_folder(name: Path) -> None:
    name.mkdir(mode=0o777)
    os.chown(name, 65534, 65534)


def _squat_by_link(name: Path) -> None:
    name.symlink_to("nowhere")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("squat", [_squat_by_folder, _squat_by_link, Path.touch])
def test_a_name_that_somebody_else_took_locks_nobody_out(
    pool_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, squat: Callable[[Path], None]
) -> None:
    root = tmp_path / "tmp"
    root.mkdir()
    monkeypatch.setattr(paths, "_ROOT", root)
    usual = root / f"jupyter-elastic-{os.getuid()}"
    squat(usual)
    found = paths.runtime_dir()
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert len(str(found.relative_to(root))) < 40
    assert found == paths.runtime_dir()
    usual.rmdir() if squat is _squat_by_folder else usual.unlink()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert found == paths.runtime_dir(), "whoever comes later must find the same"
    assert paths.runtime_dirs() == [found]
    assert paths.runtime_dir_of(tmp_path / "another").parent == usual

    monkeypatch.setattr(paths, "_ROOT", tmp_path / "of another host")
    paths._ROOT.mkdir()
    squat(paths._ROOT / usual.name)
    elsewhere = paths.runtime_dir()
    assert elsewhere.is_relative_to(paths._ROOT)
    monkeypatch.setattr(paths, "_ROOT", root)
    assert found == paths.runtime_dir(), "hosts that share a home don't take each other's folder"

    os.chown(found.parent, 65534, 65534)
    assert paths.runtime_dir().parent == usual, "somebody else's is never used, whatever the note says"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can take another's name")
def test_all_who_ask_at_once_get_the_same_folder(pool_dir: Path, tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from jupyter_elastic.platform import paths; paths._ROOT = "
    code += f"Path({str(tmp_path)!r}); input(); print(paths.runtime_dir())"
    _squat_by_folder(tmp_path / f"jupyter-elastic-{os.getuid()}")
    asking = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(4)
    ]
    for process in asking:
        process.stdin.write(b"\n")
        process.stdin.flush()
    (found,) = {process.communicate()[0].decode().strip() for process in asking}
    assert Path(found).is_dir()


def test_find(pool_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert endpoints.find().endpoint == f"ipc://{paths.socket_path()}"
    assert endpoints.find("tcp://host:7").endpoint == "tcp://host:7"
    private_files.write_json(paths.daemon_file(), endpoints.Endpoint(endpoint="ipc:///x", pid=1))
    assert endpoints.find().endpoint == "ipc:///x"
    assert stat.S_IMODE(paths.daemon_file().stat().st_mode) == 0o600
    private_files.write_json(tmp_path / "remote.json", endpoints.Endpoint(endpoint="tcp://h:1", server_key="k"))
    monkeypatch.setenv(endpoints.ENDPOINT_VARIABLE, str(tmp_path / "remote.json"))
    assert endpoints.find().server_key == "k"
    monkeypatch.setenv(endpoints.ENDPOINT_VARIABLE, str(tmp_path / "nothing"))
    with pytest.raises(DaemonUnreachable, match="neither an endpoint"):
        endpoints.find()


@pytest.fixture
def machine_config(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's file; no variable says which pool is meant."""
    monkeypatch.delenv(endpoints.ENDPOINT_VARIABLE, raising=False)
    monkeypatch.setattr(endpoints, "CONFIG", home / "config.toml")
    return home / "config.toml"


def test_the_machines_file_names_the_pool_of_those_who_say_nothing(
    machine_config: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert endpoints.choose().endpoint == ""
    assert endpoints.find().endpoint == f"ipc://{paths.socket_path()}"
    machine_config.write_text('socket = "/run/jupyter-elastic/pool.sock"\nof-a-later-version = true')
    assert endpoints.find().endpoint == "ipc:///run/jupyter-elastic/pool.sock"
    assert str(machine_config) in endpoints.choose().why
    assert endpoints.find("tcp://host:7").endpoint == "tcp://host:7"
    monkeypatch.setenv(paths.DIR_VARIABLE, str(home / "own"))
    assert endpoints.find().endpoint == f"ipc://{paths.socket_path()}"
    assert paths.DIR_VARIABLE in endpoints.choose().why
    monkeypatch.setenv(endpoints.ENDPOINT_VARIABLE, "tcp://host:8")
    assert endpoints.find().endpoint == "tcp://host:8"


@pytest.mark.parametrize("content", [b"socket = ", b"socket = 7", b"\xff\xfe", b"[socket]"])
def test_a_machines_file_that_can_not_be_read_names_the_way_out(
    machine_config: Path, home: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    machine_config.write_bytes(content)
    with pytest.raises(
        BadRequest, match="administrator mend it, or use a pool of your own: JUPYTER_ELASTIC_DIR="
    ) as seen:
        endpoints.find()
    assert str(machine_config) in str(seen.value)
    monkeypatch.setenv(paths.DIR_VARIABLE, str(home / "own"))
    assert endpoints.find().endpoint == f"ipc://{paths.socket_path()}"


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"endpoint": 3}', b"[" * 100_000])
def test_a_broken_connection_file_is_no_file(pool_dir: Path, content: bytes) -> None:
    paths.daemon_file().write_bytes(content)
    assert private_files.read_json(paths.daemon_file(), endpoints.Endpoint) is None
    assert endpoints.living_daemon() is None


def test_alive_is_about_the_very_process() -> None:
    me = os.getpid()
    assert processes.alive(me, processes.this_process()[1])
    assert not processes.alive(me, processes.this_process()[1] - 100)
    assert not processes.alive(0, 0.0)
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = processes.identify(process.pid)[1]
    assert processes.alive(process.pid, started)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.alive(process.pid, started), "a zombie does not live"
    process.communicate()
    assert not processes.alive(process.pid, started)


def test_a_lock_is_held_once_and_ends_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    one, two = Lock(path), Lock(path)
    assert two.holder() is None
    assert one.acquire()
    assert not two.acquire()
    assert two.holder() == os.getpid()
    one.release()
    one.release()
    assert two.acquire()
    two.release()
    code = (
        "from pathlib import Path; from jupyter_elastic.platform.lock import Lock; "
        f"l = Lock(Path({str(path)!r})); l.acquire(); "
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code + "print('held', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"held\n"
    assert not one.acquire()
    assert one.holder() == process.pid
    process.kill()
    process.communicate()
    assert one.acquire()
    one.release()


def test_asking_who_holds_a_lock_never_makes_it_fail(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            Lock(path).holder()

    asker = threading.Thread(target=ask)
    Lock(path).acquire()
    asker.start()
    try:
        for _ in range(100):
            lock = Lock(path)
            assert lock.acquire()
            lock.release()
    finally:
        done.set()
        asker.join()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("uid", [0, 54321])
def test_a_process_of_another_user_is_not_served(uid: int) -> None:
    name = f"\0je-{os.getpid()}-{uid}"  # abstract: everybody reaches it
    connect = f"import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect({name!r}); sys.stdin.read()"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        listener.settimeout(60)
        with subprocess.Popen(["/usr/bin/env", "python3", "-c", connect], stdin=subprocess.PIPE, user=uid) as process:
            connected, _ = listener.accept()
            with connected:
                if uid:
                    with pytest.raises(NotAllowed, match="user 54321 may not connect to a process of user 0"):
                        peer.check_same_user(connected)
                else:
                    peer.check_same_user(connected)
            process.communicate()
