"""What a new pool begins with: the recommended policy, the shares of a file; one with a history keeps its policy."""

from __future__ import annotations

import getpass
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler import policies
from jupyter_elastic.types import SharesChanged
from jupyter_elastic.types.errors import ElasticError, NotAllowed

if TYPE_CHECKING:
    from tests.live.daemon.conftest import Pool


def active(pool: Pool) -> str:
    answer = pool.client().ask(wire.ListPolicies())
    assert isinstance(answer, wire.Policies)
    return next(policy.name for policy in answer.policies if policy.active)


def test_the_default_of_a_new_pool_and_the_choice_that_lasts(pool: Pool) -> None:
    pool.start(plain=False)
    assert active(pool) == policies.DEFAULT
    pool.client().ask(wire.SwitchPolicy(name="las", reason="for the test"))
    pool.kill()
    pool.start()
    assert active(pool) == "las"


def test_the_demand_is_what_the_policy_would_give_away_beyond_what_there_is(pool, spec) -> None:
    client = pool.start().client()
    pool.agent()
    slots = len(client.ask(wire.ListHosts()).slots)
    assert client.ask(wire.ReadDemand(at_most=5)).slots == 0
    for _ in range(slots + 2):
        client.submit(msgspec.structs.replace(spec, min_slots=1, max_slots=1))
    assert client.ask(wire.ReadDemand(at_most=5)).slots == 2
    source = "class Mine:\n    name = 'mine'\n    def plan(self, view):\n        raise ValueError('no')\n"
    client.ask(wire.SwitchPolicy(name="mine", source=source))
    with pytest.raises(ElasticError, match=r"policy mine: .*ValueError"):
        client.ask(wire.ReadDemand())


def test_a_shared_pool_begins_with_a_policy_that_serves_users_before_jobs(pool: Pool) -> None:
    pool.start("--socket", str(pool.folder.parent / "s"), plain=False)
    assert active(pool) == "fair"


def test_shares_come_from_the_administrators_file_and_a_group_is_not_chosen(pool, spec, tmp_path) -> None:
    shares = tmp_path / "shares.toml"
    me = getpass.getuser()
    shares.write_text(f'[groups.lab]\nmembers = ["{me}"]\nweight = 2\nquota = 3\n')
    client = pool.start("--shares", str(shares)).client()
    pool.agent()
    job = client.submit(msgspec.structs.replace(spec, group="directors"))
    view = client.ask(wire.ReadView()).view
    assert (view.weights, view.quotas) == ({"lab": 2.0}, {"lab": 3})
    assert [found.group for found in view.jobs if found.job == job] == ["lab"]
    shares.write_text(f'[groups.lab]\nmembers = ["{me}"]\nmax_slots = 1\n')
    while client.ask(wire.ReadView()).view.quotas:  # it is read again
        time.sleep(0.05)
    with pytest.raises(NotAllowed, match="lab may hold 1 slot at most, and this job needs 2"):
        client.submit(msgspec.structs.replace(spec, min_slots=2))


def test_the_journal_tells_what_the_shares_were_and_only_when_they_change(pool, spec, tmp_path) -> None:
    shares = tmp_path / "shares.toml"
    shares.write_text('[groups.lab]\nmembers = ["zoe"]\nquota = 3\n')
    client = pool.start("--shares", str(shares)).client()
    noted = (event.data for event in client.events() if isinstance(event.data, SharesChanged))
    first = SharesChanged(weights={"lab": 1.0}, quotas={"lab": 3}, groups={"lab": ("zoe",)})
    assert next(noted) == first
    shares.write_text('[groups.lab]\nmembers = ["zoe"]\nquota = 3\nmax_slots = 4\n')  # no one's share
    shares.write_text("[users.zoe]\nweight = 2.0\n")
    assert next(noted) == SharesChanged(weights={"zoe": 2.0})
    pool.stop()
    pool.start("--shares", str(shares))
    pool.stop()
    again = pool.start().client()
    seen = [event.data for event in again.events(follow=False) if isinstance(event.data, SharesChanged)]
    assert seen == [first, SharesChanged(weights={"zoe": 2.0}), SharesChanged()]
