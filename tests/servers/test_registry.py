"""Every server offers what pipeline/servers/protocol.py asks of it."""

from __future__ import annotations

import re

import pytest

from pipeline.servers.derive import model_facts
from pipeline.servers.protocol import AskableServer, SupportedServer
from pipeline.servers.registry import SERVERS
from pipeline.servers.rules import Rules
from pipeline.servers.shared.caches import Caches
from pipeline.servers.shared.flags import ServerFlags
from tests.servers.recipes import ROOT, layout, server, shipped, target

VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")
ASKABLE = {name: server.askable for name, server in SERVERS.items() if server.askable is not None}


def members(protocol: type) -> list[str]:
    return [name for name in vars(protocol) if not name.startswith("_")]


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_everything_that_the_program_uses_of_it(name: str):
    supported = SERVERS[name]
    assert [member for member in members(SupportedServer) if not hasattr(supported, member)] == []
    assert issubclass(supported.flags, ServerFlags)
    assert supported.flags().name == name, "the name of a server chooses its flags"
    assert VARIABLE.fullmatch(supported.deep_gemm_variable)
    variable, value = supported.sweep_switch
    assert VARIABLE.fullmatch(variable)
    assert value
    assert (ROOT / "conf" / "server" / f"{name}.yaml").is_file()


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_has_rules_for_a_shipped_model(name: str):
    facts, errors = model_facts(shipped("deepseek"))
    assert errors == []
    assert facts is not None
    rules = SERVERS[name].rules(facts, layout("tp8"), server(name), target())
    assert [member for member in members(Rules) if not hasattr(rules, member)] == []
    assert rules.refusals() == []
    assert sum(rules.split(facts.num_layers)) == facts.num_layers
    linears = rules.linears(range(facts.num_layers))
    served = [linear for linear in linears if rules.reason(linear) is None]
    assert served
    assert all(rules.uses(linear) for linear in served)


@pytest.mark.parametrize("name", ASKABLE)
def test_a_server_that_can_be_asked_has_everything_that_a_start_uses_of_it(name: str):
    askable = ASKABLE[name]
    assert [member for member in members(AskableServer) if not hasattr(askable, member)] == []
    assert askable.distributions[0] == name
    assert "flashinfer-python" in askable.distributions, "stages/ask.py enters its version in the provider package"
    tested = ".".join(map(str, askable.tested))
    assert f"{name}=={tested}" in (ROOT / askable.requirements).read_text().splitlines()
    assert askable.script.is_file()
    assert askable.announced_kernels
    assert isinstance(askable.caches, Caches)
    assert all(VARIABLE.fullmatch(variable) for variable in askable.caches.variables)
    assert VARIABLE.fullmatch(askable.variable_prefix)


@pytest.mark.parametrize("name", ASKABLE)
def test_a_server_that_can_be_asked_is_started_for_a_recipe(name: str):
    askable = ASKABLE[name]
    checkpoint = ROOT / "checkpoint"
    variants = askable.variants(server(name), layout("tp8"), checkpoint)
    assert all(str(checkpoint) in words for words in variants.values())
    assert len(variants) == len({tuple(words) for words in variants.values()})
    assert askable.variables(shipped("deepseek"), server(name), layout("tp8")) == {}
    assert all(VARIABLE.fullmatch(variable) for variable in askable.without_peers(ROOT))
