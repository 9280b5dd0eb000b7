"""A new pool is decided by the recommended policy; a pool with a history keeps the one that was chosen last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_elastic import wire
from jupyter_elastic.scheduler import policies

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
