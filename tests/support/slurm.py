"""Machines as nodes of a cluster of Slurm's: Debian's munged and slurmctld here, a slurmd on each of the others."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

from tests.support import machines
from tests.support.machines import SOURCE, Machines, address, command

ROOT = SOURCE / ".venv" / "slurm" / "usr"
"""Unpacked by the Makefile, not installed."""
SLURMD = ROOT / "sbin" / "slurmd-wlm"
FOLDER = Path("/run/slurm")
CONFIG = """
ClusterName=test
SlurmctldHost={name}({address})
AuthInfo=socket={folder}/munge
PluginDir={plugins}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
MpiDefault=none
"""


def why_not() -> str:
    """What is missing here for such a cluster; empty: nothing."""
    return machines.why_not(SLURMD, "slurm")


def answer(*words: str) -> str:
    """What a command of Slurm's prints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


class Cluster(Machines):
    """So many nodes, h1, h2, ...; they are up. For the script that `machines.run` runs."""

    libraries = f"{machines.libraries(ROOT.parent)}:{machines.libraries(ROOT.parent) / 'slurm-wlm'}"

    def __init__(self, count: int) -> None:
        self.count = count
        os.environ.update(
            PATH=f"{ROOT / 'bin'}:{os.environ['PATH']}",
            LD_LIBRARY_PATH=self.libraries,
            SLURM_CONF=str(FOLDER / "slurm.conf"),
        )
        super().__init__(count)
        up = f"{count} idle"
        while answer("sinfo", "--noheader", "--format=%D %t") != up:
            time.sleep(0.05)

    def _server(self, number: int) -> str:
        if number == 1:
            self._begin()
        return f"{SLURMD} -N h{number} -d {ROOT / 'sbin' / 'slurmstepd-wlm'}"

    def _begin(self) -> None:
        """What all nodes need: one munged for all, as its socket is a file, and the controller."""
        (FOLDER / "state").mkdir(parents=True, mode=0o755)
        key = FOLDER / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        names = [f"h{number}" for number in range(1, self.count + 1)]
        for name in names:
            (FOLDER / f"spool-{name}").mkdir(mode=0o755)
        nodes = [
            f"NodeName={name} NodeAddr={address(number)} CPUs=2 RealMemory=2000 State=UNKNOWN"
            for number, name in enumerate(names, start=1)
        ]
        config = CONFIG.format(
            name=socket.gethostname().partition(".")[0],
            address=address(0),
            folder=FOLDER,
            plugins=machines.libraries(ROOT.parent) / "slurm-wlm",
        )
        (FOLDER / "slurm.conf").write_text(
            "\n".join([config, *nodes, f"PartitionName=all Nodes={','.join(names)} Default=YES"])
        )
        (FOLDER / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        command(
            ROOT / "sbin" / "munged", "--force", "--key-file", key, "--socket", FOLDER / "munge",
            "--pid-file", FOLDER / "munge.pid", "--log-file", FOLDER / "munge.log", "--seed-file", FOLDER / "seed",
        )  # fmt: skip
        command(ROOT / "sbin" / "slurmctld-wlm")
