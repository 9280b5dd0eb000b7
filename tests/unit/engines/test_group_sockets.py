"""Which of a process's connections are hung up when a group breaks, with real sockets."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from jupyter_elastic.engines.common.group_sockets import GroupSockets


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname())
        return mine, server.accept()[0]


def test_only_what_was_opened_for_the_group_is_hung_up() -> None:
    sockets = GroupSockets()
    mine, peer = connected()
    with sockets.opening():
        of_group, other_end = connected()
    with mine, peer, of_group, other_end:
        sockets.hang_up()
        assert other_end.recv(1) == b""
        mine.sendall(b"x")
        assert peer.recv(1) == b"x"


def test_a_number_that_another_file_has_by_now_stays_its_own_and_none_is_left_open(tmp_path: Path) -> None:
    sockets = GroupSockets()
    with sockets.opening():
        first, first_peer = connected()
        second, second_peer = connected()
    later, later_peer = connected()
    number = first.detach()
    with (tmp_path / "commit").open("w") as file, first_peer, second, second_peer, later, later_peer:
        os.dup2(file.fileno(), number)  # as when the library has closed a connection, and a file is opened
        os.dup2(later.fileno(), second.fileno())
        before = set(Path("/proc/self/fd").iterdir())
        sockets.hang_up()
        assert set(Path("/proc/self/fd").iterdir()) == before
        os.write(number, b"kept")
        later.sendall(b"x")
        assert later_peer.recv(1) == b"x"
        os.close(number)
    assert (tmp_path / "commit").read_text() == "kept"
