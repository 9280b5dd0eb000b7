"""Samples that move between unequal hosts, for real: the digits, Pareto-skewed, on four hosts behind shaped links.

Each host is a network namespace with tc's limits on what it sends and receives, and computes a sample in a time of its
own. The same training runs with the samples where they lie, and with `balance="auto"`, everything that this costs
included: measuring speeds and links, planning, moving. For root. A round takes three to six minutes, another seed each.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import row
from jupyter_elastic.balance.generate import PARETO
from jupyter_elastic.driver.engine import Engine
from jupyter_elastic.engines.horovod.driver import Horovod
from jupyter_elastic.engines.torch.driver import Torch
from tests.live.engine.bench import Bench
from tests.support.unequal_hosts import UnequalHosts, impossible

HOSTS, EPOCHS, BATCH = 4, 12, 64
SPEEDS = (40.0, 160.0)
"""Samples/s of the slowest and the fastest host, about; links differ by ten."""
RATES = (300e3, 3e6)
CELL = """
import hashlib, json, os, time
from collections import Counter
import numpy as np, torch
from jupyter_elastic import training
from jupyter_elastic.training.unequal import exchange
from jupyter_elastic.training.context import context

carry_out = exchange.transfer

def transfer(shard, *given):
    plans.append((time.time() - at["begun"], shard.plan))
    return carry_out(shard, *given)

exchange.transfer = transfer
who = int(os.environ["RANK"])
x_here, y_here = parts[who]
mine = training.shard((x_here, y_here), balance=balance, name=f"host{who}")
torch.manual_seed(seed)
model = torch.nn.Sequential(
    torch.nn.AvgPool2d(3), torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
state = training.State(model=model, optimizer=optimizer)
trained, at, plans = Counter(), {}, []

def known(x):
    return [hashlib.blake2b(one.tobytes(), digest_size=8).hexdigest() for one in x]

@training.run
def train(state):
    at["begun"] = time.time()
    for state.epoch in state.epochs(epochs):
        for x, y in training.batches(mine, batch, seed=seed):
            if context.weight:
                trained.update(known(x))
            time.sleep(len(x) / speeds[who])
            loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(x)[:, None]), torch.from_numpy(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    at["ended"] = time.time()

train(state)
with torch.no_grad():
    accuracy = float((model(torch.from_numpy(x_test)[:, None]).argmax(1) == torch.from_numpy(y_test)).float().mean())
held = known(np.stack([mine[number][0][0] for number in range(len(mine))]))
found = {
    "seconds": at["ended"] - at["begun"], "accuracy": accuracy, "trained": dict(trained), "held": held,
    "plans": [(when, plan.total_s, plan.without_s, plan.why) for when, plan in plans],
}
"""


def instance(seed: int) -> dict[str, Any]:
    """Data, speeds and links of the hosts."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = np.kron(images.reshape(-1, 8, 8).astype("float32") / 16, np.ones((1, 3, 3), "float32"))
    images += np.random.default_rng(0).normal(scale=1e-3, size=images.shape).astype("float32")  # no two are alike
    x, x_test, y, y_test = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    chance = np.random.default_rng(seed)
    shares = 1 + chance.pareto(PARETO, HOSTS)
    ends = np.round(np.cumsum(shares / shares.sum()) * len(x)).astype(int)[:-1]
    low, high = SPEEDS
    slow, quick = RATES
    return {
        "parts": list(zip(np.split(x, ends), np.split(y, ends), strict=True)),
        "x_test": x_test, "y_test": y_test, "seed": seed, "epochs": EPOCHS, "batch": BATCH,
        "speeds": [round(float(v), 1) for v in low * (high / low) ** chance.permutation(np.linspace(0, 1, HOSTS))],
        "rates": [round(float(v)) for v in slow * (quick / slow) ** chance.permutation(np.linspace(0, 1, HOSTS))],
    }  # fmt: skip


def trained(
    hosts: UnequalHosts, folder: Path, names: dict[str, Any], balance: str, engine: type[Engine] = Torch
) -> dict[int, Any]:
    """What each rank found in a training on these hosts."""

    async def story() -> dict[int, Any]:
        places = {"hosts": hosts.addresses(), "min_slots": HOSTS, "warm": False}
        async with Bench(engine, folder, CELL, names={**names, "balance": balance}, out=("found",), **places) as bench:
            await bench.launch(*(f"{name}:0" for name in hosts.rates))
            assert (await bench.ended(900)).outcome == "completed", bench.story()
            return {rank: of["found"] for rank, of in bench.results().items()}

    with hosts.inside():
        return asyncio.run(story())


def check(found: dict[int, Any], names: dict[str, Any]) -> None:
    """Every sample is somewhere, once, and was trained once an epoch."""
    known = Counter(hashlib.blake2b(one.tobytes(), digest_size=8).hexdigest() for x, _ in names["parts"] for one in x)
    assert set(known.values()) == {1}
    assert Counter(one for of in found.values() for one in of["held"]) == known
    epochs: Counter[str] = Counter()
    for of in found.values():
        epochs.update(of["trained"])
    assert epochs == Counter(dict.fromkeys(known, EPOCHS))


def measure(rounds: int) -> list[dict[str, Any]]:
    """Rows of time, prediction and accuracy; the first draw over Horovod's ring too."""
    if problem := impossible():
        raise RuntimeError(f"hosts on this machine need root and network namespaces: {problem}")
    return [*measured(Torch, range(rounds)), *measured(Horovod, [0], ", Horovod")]


def measured(engine: type[Engine], seeds: Iterable[int], suffix: str = "") -> list[dict[str, Any]]:
    """The rows of one engine, with a suffix to their names."""
    seconds: dict[str, list[float]] = {"none": [], "auto": []}
    accuracy: dict[str, list[float]] = {"none": [], "auto": []}
    predicted: dict[str, list[float]] = {"none": [], "auto": []}
    for seed in seeds:
        names = instance(seed)
        rates = {f"h{number}": rate for number, rate in enumerate(names["rates"])}
        held = [len(x) for x, _ in names["parts"]]
        print(f"  {held} samples, {names['speeds']} samples/s, {names['rates']} bytes/s", flush=True)
        with tempfile.TemporaryDirectory() as place, UnequalHosts(Path(place), rates) as hosts:
            for balance in ("none", "auto"):
                found = trained(hosts, Path(place, balance), names, balance, engine)
                check(found, names)
                seconds[balance].append(max(of["seconds"] for of in found.values()))
                accuracy[balance].append(found[0]["accuracy"])
        when, total_s, without_s, _why = found[0]["plans"][0]
        predicted["auto"].append(when + total_s)
        predicted["none"].append(without_s)
        for at_s, _total, _without, why in found[0]["plans"]:
            print(f"  after {at_s:.1f} s: {why}", flush=True)
        for balance in ("none", "auto"):
            print(
                f"  {balance}: {seconds[balance][-1]:.1f} s, predicted {predicted[balance][-1]:.1f} s, accuracy "
                f"{accuracy[balance][-1]:.3f}",
                flush=True,
            )
    goal = "within 15 %"
    return [
        row(
            f"4 unequal hosts, samples moved{suffix}",
            "s",
            seconds["auto"],
            seconds["none"],
            "not moved",
            "ratio <= 0.71",
        ),
        row(f"prediction with the transfer{suffix}", "s", predicted["auto"], seconds["auto"], "measured", goal),
        row(f"prediction without it{suffix}", "s", predicted["none"], seconds["none"], "measured", goal),
        row(
            f"accuracy, samples moved{suffix}", "share", accuracy["auto"], accuracy["none"], "not moved", "within 0.01"
        ),
    ]
