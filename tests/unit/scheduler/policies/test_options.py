"""Options: described in words a person understands, and every bad one refused with the reason."""

from __future__ import annotations

import math
from importlib import metadata

import msgspec
import pytest

from jupyter_elastic.cli import describe, main
from jupyter_elastic.protocol import wire
from jupyter_elastic.scheduler.planning import plugins
from jupyter_elastic.types.errors import BadRequest, NotFound

NAMES = plugins.names(plugins.POLICIES)
INFOS = plugins.policy_infos("balanced", {"cooldown": 7.5})


class Desk:
    def ask(self, ask):
        assert isinstance(ask, wire.ListPolicies)
        return wire.Policies(policies=INFOS, refusal="")


def told(*words):
    return main.text(["policy", *words], Desk)


def bad_values(name):
    """Every option of a policy with values that it must not take."""
    kind = next(iter(metadata.entry_points(group=plugins.POLICIES, name=name))).load()
    (fields,) = (one["properties"] for one in msgspec.json.schema(kind.Options)["$defs"].values())
    for option, field in fields.items():
        yield option, {"a": "dictionary"}
        yield option, "no such value"
        if "minimum" in field:
            yield option, field["minimum"] - 1
            yield option, -math.inf
        if "maximum" in field:
            yield option, field["maximum"] * 2 + 1
            yield option, math.inf
        if field.get("type") == "number":
            yield option, math.nan


BAD = [(name, option, value) for name in NAMES for option, value in bad_values(name)]


def test_there_are_fifteen():
    assert len(NAMES) == 15


@pytest.mark.parametrize(("name", "option", "value"), BAD)
def test_a_bad_value_is_refused_with_the_reason(name, option, value):
    with pytest.raises(BadRequest) as refused:
        plugins.make_policy(name, {option: value})
    said = str(refused.value)
    assert said.startswith(f"policy {name}: ")
    assert option in said.partition("; its options are ")[0], "it names the option"
    assert "$." not in said
    assert "Expected" in said or "Invalid" in said or "must be" in said, said


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_refused_with_those_there_are(name):
    with pytest.raises(BadRequest, match=r"no option colour; its options are \w+="):
        plugins.make_policy(name, {"colour": 1})


@pytest.mark.parametrize("name", NAMES)
def test_each_policy_is_described_with_type_default_and_meaning(name):
    found = describe.options(describe.find(INFOS, name))
    assert found
    for option in found:
        assert option.kind
        assert option.default
        assert 10 < len(option.meaning) < 120, option
    said = told("describe", name)
    assert said.startswith(name)
    for option in found:
        assert option.name in said


def test_types_ranges_and_defaults_are_said_in_words():
    said = {option.name: option for option in describe.options(describe.find(INFOS, "round_robin"))}
    assert said["mode"].kind == "placement or timeslice"
    assert said["mode"].default == "timeslice"
    assert said["passes"].kind == "whole number, 1 to 1,000"
    assert said["quantum_s"].kind == "number, 1 to 1,000,000"
    assert said["quantum_s"].default == "600"
    (strict,) = (one for one in describe.options(describe.find(INFOS, "elastic_fifo")) if one.name == "strict")
    assert strict[1:3] == ("true or false", "true")


def test_a_value_that_is_set_is_shown_beside_the_default():
    (cooldown,) = (one for one in describe.options(describe.find(INFOS, "balanced")) if one.name == "cooldown")
    assert (cooldown.default, cooldown.now) == ("2", "7.5")
    assert "NOW" in told("describe", "balanced")
    assert "(active)" in told("describe", "balanced")
    assert "NOW" not in told("describe", "fifo")


def test_what_can_not_be_described_is_said():
    with pytest.raises(NotFound, match=r"no policy 'optimum'; there are afs, .*did you mean optimus"):
        told("describe", "optimum")
    with pytest.raises(BadRequest, match="policy describe: the following arguments are required: NAME"):
        told("describe")
    with pytest.raises(BadRequest, match="unrecognized arguments: las"):
        told("fifo", "las")
