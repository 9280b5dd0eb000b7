"""The driver's end of a hand: how hosts are reached, and what it does with whoever answers there."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
from jupyter_elastic_ray import provider as ray
from jupyter_elastic_ray.bridge_messages import RayNode

from jupyter_elastic.forkserver.forked_workers import address
from jupyter_elastic.host_agent import facts
from jupyter_elastic.host_agent.facts import hello
from jupyter_elastic.hostfiles import hosts_file
from jupyter_elastic.hostfiles.host_providers import AgentCommand, parse
from jupyter_elastic.hostfiles.hosts_file import HostAddress
from jupyter_elastic.hosts import attempt_hosts as hosts_module
from jupyter_elastic.hosts.attempt_hosts import AttemptHosts
from jupyter_elastic.hosts.connection.handshake import WorkerSetting, check
from jupyter_elastic.hosts.connection.host_connection import HostConnection
from jupyter_elastic.hosts.connection.remote_output import RemoteOutput
from jupyter_elastic.hosts.providers.local import LocalTarget
from jupyter_elastic.jobfiles import displays
from jupyter_elastic.jobfiles.captures import PAYLOAD
from jupyter_elastic.jobfiles.displays import Display
from jupyter_elastic.jobfiles.job_folder import JobFolder
from jupyter_elastic.protocol import host_agent_messages as messages
from jupyter_elastic.protocol.host_agent_messages import FROM_HOST_AGENT, MAGIC, TO_HOST_AGENT
from jupyter_elastic.types.errors import BadRequest, EngineError, ProtocolError


def command(host: HostAddress, python: str, runtime: Path) -> list[str]:
    """The command that connects to a host agent there."""
    agent = [host.python or python, "-P", "-m", "jupyter_elastic.host_agent"]
    return list(parse(host).command(agent, runtime).argv)


def host(url: str = "ssh://lab2", **more: Any) -> HostAddress:
    return HostAddress(name="lab2", url=url, **more)


def test_ssh_gets_the_destination_after_the_options_and_one_quoted_command() -> None:
    argv = command(host("ssh://ada@lab2.example:2222", python="/opt/my env/bin/python"), "/p", Path("/run/x"))
    assert argv[0] == "ssh"
    assert argv[-3:-1] == ["--", "ada@lab2.example"]
    assert argv[argv.index("-p") + 1] == "2222"
    assert "BatchMode=yes" in argv
    assert shlex.split(argv[-1]) == ["/opt/my env/bin/python", "-P", "-m", "jupyter_elastic.host_agent"]
    assert [word for word in argv if "StrictHostKeyChecking" in word] == ["StrictHostKeyChecking=yes"]


@pytest.mark.parametrize(
    "url",
    [
        "lab2", "ssh://", "ssh://-oProxyCommand=x", "ssh://a;b", "ssh://$(x)", "ssh://a b", "ssh://a@b@c", "ssh://@a",
        "ssh://a@-b", "ssh://a/b", "ssh://a:x", "ssh://a:99999", "http://a", "ssh://a?b", "exec:rm", "ssh://ä",
        "ssh://[::1]", "ssh://a\n", "ssh://a\nb", "ssh://a\tb",
    ],
)  # fmt: skip
def test_a_way_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match=re.escape("ssh://[user@]host[:port]")):
        parse(host(url))


def test_srun_gets_the_node_and_no_option_of_a_step_around(monkeypatch: pytest.MonkeyPatch) -> None:
    node = host("slurm://4711/lab-2", python="/opt/env/bin/python")
    parse(node)
    argv = command(node, "/p", Path("/run/x"))
    assert argv[0] == "srun"
    assert argv[-6:] == [
        "--jobid=4711", "--nodelist=lab-2", "/opt/env/bin/python", "-P", "-m", "jupyter_elastic.host_agent"
    ]  # fmt: skip
    assert {"--unbuffered", "--overlap", "--mem=0"} <= set(argv)
    ours = {
        "PATH": "/bin",
        "SLURM_CONF": "/c",
        "SLURM_JOB_ID": "1",
        "SLURM_MEM_PER_CPU": "9",
        "SRUN_CPUS_PER_TASK": "2",
    }
    monkeypatch.setattr(os, "environ", ours)
    assert parse(node).command([], Path()).env == {"PATH": "/bin", "SLURM_CONF": "/c"}
    assert parse(host()).command([], Path()).env is None


@pytest.mark.parametrize(
    "url",
    ["slurm:", "slurm:4711", "slurm://lab2", "slurm://4711", "slurm://4711/", "slurm://4711/-x", "slurm://4711/a,b",
     "slurm://4711/a[1-2]", "slurm://4711/a b", "slurm://-1/a", "slurm://4711/a/b", "slurm://4711/a\n"],
)  # fmt: skip
def test_a_node_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="expected slurm://ALLOCATION/NODE"):
        parse(host(url))


def test_a_step_has_what_slurm_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "_gpus", lambda: ("GPU-0", "GPU-1", "GPU-2"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,7")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    for name in ("SSH_CONNECTION", "SLURM_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert facts.step() == ""
    assert hello().gpus == ("GPU-0", "GPU-1", "GPU-2")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    monkeypatch.setenv("SLURM_LAUNCH_NODE_IPADDR", "127.0.1.1")
    seen = hello()
    assert (facts.step(), seen.gpus, seen.cores, seen.came_by) == ("4711.3", ("GPU-1", "GPU-2"), 1, "")


def test_forkserver_of_a_step_is_nobody_elses() -> None:
    one, same, other = (address("/p", {}, ("torch",), step).path for step in ("4711.3", "4711.3", "4711.4"))
    assert one == same
    assert len({one, other, address("/p", {}, ("torch",)).path}) == 3


def test_a_pod_is_reached_by_kubectl_exec() -> None:
    words = command(host("kubectl://ada/gpu-0/main"), "/opt/python", Path("/run"))
    assert words[:6] == ["kubectl", "exec", "--stdin", "--namespace=ada", "gpu-0", "--container=main"]
    assert words[6:] == ["--", "/opt/python", "-P", "-m", "jupyter_elastic.host_agent"]
    assert command(host("kubectl://ada/gpu-0"), "/opt/python", Path("/run"))[5] == "--"
    one = msgspec.structs.replace(hello(), addresses=("127.0.0.1", "10.244.1.7"), came_by="")
    assert parse(host("kubectl://ada/gpu-0")).data_address(one) == "10.244.1.7"
    two = msgspec.structs.replace(one, addresses=(*one.addresses, "192.168.0.7"))
    with pytest.raises(EngineError, match="name its network"):
        parse(host("kubectl://ada/gpu-0")).data_address(two)
    assert parse(host("kubectl://ada/gpu-0", network="192.168.0.0/16")).data_address(two) == "192.168.0.7"


@pytest.mark.parametrize(
    "url",
    ["kubectl://gpu-0", "kubectl://ada/-oProxy", "kubectl://--all/gpu-0", "kubectl://a/b/c/d", "kubectl://a/$(x)"],
)
def test_a_pod_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="expected kubectl://NAMESPACE/POD"):
        parse(host(url))


def test_a_node_of_a_ray_cluster_is_reached_by_the_bridge_which_holds_the_slots_there() -> None:
    url = "ray://10.0.0.1:6379/10.0.0.11"
    argv = command(host(url, slots=3), "/opt/python", Path("/run/x"))
    assert argv[1:] == [
        "-P", "-m", "jupyter_elastic_ray", "10.0.0.1:6379", "--node", "10.0.0.11", "--host", "lab2", "--pool",
        "x", "--cpus", "3", "--run", "/opt/python", "-P", "-m", "jupyter_elastic.host_agent",
    ]  # fmt: skip
    argv = command(host(url, slots=2, devices=("GPU-1", "GPU-2")), "/opt/python", Path("/run/x"))
    assert argv[argv.index("--pool") + 2 :][:3] == ["--gpus", "2", "--run"]
    argv = command(host(url, source="cluster"), "/opt/python", Path("/run/x"))
    assert argv[argv.index("--node") + 2] == "--run"  # its placement group holds the slots


def test_nodes_of_a_ray_cluster_are_hosts_with_what_ray_gives_away() -> None:
    def node(number: int, **more: Any) -> RayNode:
        return RayNode(id=f"{number:056x}", address=f"10.0.0.{number}", **more)

    cluster = host("ray://head:6379", network="10.0.0.0/8")
    found = [node(1, cpus=8, here=True), node(2, cpus=4), node(3, cpus=8, gpus=2), node(4)]
    two, three = ray.hosts(cluster, None, found)
    assert (two.name, two.url, two.slots, two.devices) == ("lab2-10.0.0.2", "ray://head:6379/10.0.0.2", 4, ())
    assert (three.name, three.slots, len(three.devices), three.network) == ("lab2-10.0.0.3", 2, 2, "10.0.0.0/8")
    assert [one.slots for one in ray.hosts(cluster, 3, found)] == [3, 2]
    (one,) = ray.hosts(host("ray://head:6379/10.0.0.3"), None, found)
    assert (one.name, one.url) == ("lab2", "ray://head:6379/10.0.0.3")
    same = [msgspec.structs.replace(node(number, cpus=1), address="127.0.0.1") for number in (5, 6)]
    assert [one.url for one in ray.hosts(cluster, None, same)] == [f"ray://head:6379/{n.id}" for n in same]
    others = (two, host(), HostAddress(name="lab2-b", url="exec:"))
    assert [one.name for one in others if parse(one).belongs_to("lab2")] == [two.name]
    with pytest.raises(BadRequest, match="no other node with CPUs or GPUs"):
        ray.hosts(cluster, None, found[:1])


def test_who_has_no_ray_cluster_is_told_so_at_once() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{nobody.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"no Ray cluster answers at {place}: Connection refused; the address is"):
            ray.nodes(place)


@pytest.mark.parametrize(
    "url", ["ray://", "ray:x", "ray://a", "ray://a:1", "ray://a:1/", "ray://-a:1/b", "ray://a:1/-b", "ray://a:1/b c"]
)
def test_a_way_by_ray_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match=re.escape("ray://HOST:PORT/NODE")):
        parse(host(url))


def test_the_data_address_is_in_the_network_or_where_the_command_came_in() -> None:
    seen = msgspec.structs.replace(hello(), addresses=("127.0.0.1", "10.1.0.7", "192.0.2.3"), came_by="192.0.2.3")
    assert parse(host(network="10.1.0.0/16")).data_address(seen) == "10.1.0.7"
    assert parse(host()).data_address(seen) == "192.0.2.3"
    with pytest.raises(EngineError, match=r"no address in the network 10\.9\.0\.0/16; its addresses are 127"):
        parse(host(network="10.9.0.0/16")).data_address(seen)
    with pytest.raises(EngineError, match="name its network"):
        parse(host()).data_address(msgspec.structs.replace(seen, came_by=""))
    with pytest.raises(BadRequest, match=r"'10\.1' is none of IPv4"):
        parse(host(network="10.1"))


def test_what_is_installed_there_must_fit() -> None:
    check("lab2", hello(), {})
    for changes, said in (
        ({"package": "0.0.1"}, "lab2 has jupyter-elastic 0.0.1"),
        ({"python": "3.9.1"}, "lab2 has Python 3.9, and this one 3."),
        ({"frameworks": {"torch": "1.0"}}, "lab2 has torch 1.0, and this one 2.9"),
        ({"frameworks": {}}, "lab2 has torch missing"),
    ):
        with pytest.raises(EngineError, match=re.escape(said)):
            check("lab2", msgspec.structs.replace(hello(), **changes), {"torch": "2.9"})


@pytest.mark.parametrize(
    "content",
    ["{}", '[{"name": "a"}]', '[{"name": "-a", "reach": "exec:"}]', '[{"name": "a:b", "reach": "exec:"}]', "\x00",
     '[{"name": "a", "reach": "exec:", "slots": 0}]', '[{"name": "a", "reach": "exec:", "command": "rm"}]',
     '[{"name": "a", "reach": "exec:"}, {"name": "a", "reach": "exec:"}]'],
)  # fmt: skip
def test_file_of_hosts_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / hosts_file.NAME).write_text(content)
    with pytest.raises(BadRequest, match=hosts_file.NAME):
        hosts_file.read(tmp_path)


def test_file_of_hosts_comes_back_as_written(tmp_path: Path) -> None:
    assert hosts_file.read(tmp_path) == ()
    hosts_file.change(tmp_path, put=(host(slots=3), HostAddress(name="b", url="exec:", devices=("GPU-1",))))
    assert [one.name for one in hosts_file.read(tmp_path)] == ["lab2", "b"]
    for name in ("b", "c"):  # one that was taken out stays out
        hosts_file.put_end(tmp_path, name, 5000.0)
    assert [(one.name, one.until) for one in hosts_file.read(tmp_path)] == [("lab2", None), ("b", 5000.0)]


# --- whoever answers


def opened(folder: Path, code: str) -> str:
    """The error of opening a hand in whose place an interpreter runs `code`."""
    (folder / PAYLOAD).write_bytes(b"")
    python = folder / "python"
    python.write_text(f"#!{sys.executable}\n{code}")
    python.chmod(0o700)

    async def run() -> str:
        setting = WorkerSetting(folder=folder, python=str(python), environment={}, frameworks=(), warm=False)
        worker_host = HostConnection(parse(HostAddress(name="b", url="exec:")), setting, lambda _: None)
        with pytest.raises(EngineError) as caught:
            await worker_host.open()
        await worker_host.close_and_wait()
        return str(caught.value)

    return asyncio.run(run())


SPEAK = f"import sys; say = sys.stdout.buffer; say.write({MAGIC!r})\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", "no host agent answers on host b"),
        ("print('Welcome to lab2!')", "no host agent answers on host b (what came was: 'Welcome to lab2!')"),
        ("print('x' * 10_000_000)", "no host agent answers on host b"),
        (
            "import sys; sys.exit('Permission denied (publickey).')",
            "no host agent answers on host b: Permission denied",
        ),
        (SPEAK + "say.write(b'\\x09\\0\\0\\1x')", "speaks version 9"),
        (SPEAK + "say.write(b'\\x01\\xff\\xff\\xff')", "over the limit"),
        (SPEAK + "say.write(b'\\x01\\0\\0\\1x')", "can't be read"),
        (SPEAK + f"say.write({FROM_HOST_AGENT.encode(messages.Heartbeat())!r})", "no host agent answers"),
        (SPEAK + f"say.write({FROM_HOST_AGENT.encode(hello())!r})", "its host agent has ended"),
    ],
)  # fmt: skip
def test_who_is_no_hand_is_quoted(tmp_path: Path, code: str, said: str) -> None:
    assert said in opened(tmp_path, code)


def test_what_a_command_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    code = f"""
import pathlib, subprocess
sleep = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # it holds stderr
pathlib.Path({str(left)!r}).write_text(str(sleep.pid))
"""
    assert "no host agent answers on host b" in opened(tmp_path, code)
    sleep = psutil.Process(int(left.read_text()))
    assert sleep.cmdline() == ["sleep", "60"]
    sleep.kill()


def test_words_of_a_login_shell_are_skipped(tmp_path: Path) -> None:
    problem = messages.HostRefused("nothing here")
    code = f"print('Welcome to lab2!', flush=True)\n{SPEAK}say.write({FROM_HOST_AGENT.encode(hello())!r})\n"
    assert opened(tmp_path, f"{code}say.write({FROM_HOST_AGENT.encode(problem)!r})") == "host b: nothing here"


def test_an_order_of_an_earlier_version_starts_a_host_agent_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = LocalTarget.command

    def command(self: LocalTarget, agent: list[str], runtime: Path) -> AgentCommand:
        return before(self, [*agent, "--warm"], runtime)

    monkeypatch.setattr(LocalTarget, "command", command)

    async def run() -> None:
        setting = WorkerSetting.to_visit(sys.executable)
        worker_host = HostConnection(parse(HostAddress(name="b", url="exec:")), setting, lambda _: None)
        about = await worker_host.visit()
        assert psutil.Process(about.pid).cmdline()[-1] == "--warm"
        assert await worker_host.close_and_wait()

    asyncio.run(run())


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        setting = WorkerSetting(
            folder=tmp_path, python=sys.executable, environment={}, frameworks=(), warm=False, workdir="/nowhere"
        )
        worker_host = HostConnection(parse(HostAddress(name="b", url="exec:")), setting, lambda _: None)
        with pytest.raises(EngineError, match="host b: the notebook's folder /nowhere does not exist there"):
            await worker_host.open()
        await worker_host.close_and_wait()

    asyncio.run(run())


@pytest.mark.parametrize(
    "message",
    [
        messages.Output("../../etc/passwd", b"x"), messages.Output("rank.0/../x", b"x"), messages.Data(0, b""),
        messages.Data(1, bytes(messages.PIECE + 1)), messages.ResultPart(-1, b"", last=True),
    ],
)  # fmt: skip
def test_messages_of_a_hand_are_checked(message: messages.FromHostAgent) -> None:
    async def read() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(FROM_HOST_AGENT.encode(message))
        await FROM_HOST_AGENT.read(reader)

    with pytest.raises(ProtocolError):
        asyncio.run(read())


def test_a_lost_host_is_lost_before_its_fence_can_be_passed() -> None:
    assert messages.LOST_S - messages.HEARTBEAT_S > messages.HEARTBEAT_TIMEOUT_S
    assert len(TO_HOST_AGENT.encode(messages.StartWorker(1, bytes(1100 * 1024)))) < messages.MAX_MESSAGE + 4


def test_a_lost_host_is_not_reached_anew_by_who_asks_for_its_hand() -> None:
    """Before its fence has passed another hand could start a worker beside the old one."""

    async def story() -> None:
        owner: Any = SimpleNamespace(host_lost=lambda *_: None)
        address = HostAddress(name="b", url="exec:")
        hosts = AttemptHosts(
            [parse(address)], WorkerSetting.to_visit(sys.executable), owner, owner, asyncio.create_task
        )
        worker_host = hosts.remote("b:0")
        hosts.unusable("b", "no reason")
        assert hosts.remote("b:0") is worker_host
        with pytest.raises(EngineError, match="host b is lost"):
            await hosts.open("b:0")

    asyncio.run(story())


def test_a_host_whose_time_is_over_is_not_tried_until_it_is_added_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "SELDOM_S", 0.01)
    tried = []

    class Silent(HostConnection):
        async def open(self) -> None:
            tried.append(self.target)
            raise EngineError("nobody")

    monkeypatch.setattr(hosts_module, "HostConnection", Silent)

    async def story() -> None:
        owner: Any = SimpleNamespace(host_lost=lambda *_: None)
        setting = msgspec.structs.replace(WorkerSetting.to_visit(sys.executable), lost_s=0.0)
        hosts = AttemptHosts([parse(HostAddress(name="b", url="exec:"))], setting, owner, owner, asyncio.create_task)
        hosts.remote("b:0")
        hosts.add([parse(HostAddress(name="b", url="exec:", until=time.time()))])
        hosts.unusable("b", "Ray drains it")
        await asyncio.sleep(0.1)
        assert not tried
        again = parse(HostAddress(name="b", url="exec:", slots=2))
        hosts.add([again])
        async with asyncio.timeout(10):
            while not tried:  # noqa: ASYNC110 - it is a list
                await asyncio.sleep(0.01)
        assert tried[0] == again
        await hosts.close()

    asyncio.run(story())


def test_displays_of_another_host_stand_after_what_was_printed_here(tmp_path: Path) -> None:
    (tmp_path / "rank.1").mkdir()
    (tmp_path / "rank.1" / "stdout").write_text("12345")
    output = RemoteOutput(tmp_path)
    line = displays.encode(Display(kind="display_data", after=3)) + b"\n"
    output.add("rank.1/stdout", b"abc")
    output.add("rank.1/display.jsonl", line[:10])
    output.add("rank.1/display.jsonl", line[10:] + b"no display\n")
    assert (tmp_path / "rank.1" / "stdout").read_text() == "12345abc"
    assert [record.after for record, _ in displays.Reader(JobFolder(tmp_path), "rank.1").more()] == [8]
    for data, last in ((b"ab", False), (b"c", True)):
        output.add_result(2, data, last=last)
    assert (tmp_path / "results" / "rank.2.pickle").read_bytes() == b"abc"
