"""What SGLang's model classes do in a way of their own."""

from __future__ import annotations

import pytest

from pipeline.servers.derive import model_facts
from pipeline.servers.sglang.model_classes import CLASSES, SglangModelClass, class_of
from pipeline.workload.model import Family, ModelFacts
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import shapes_of, shipped, workload_of
from tests.servers.sglang.layouts import TP8


def facts_of(model: str) -> ModelFacts:
    facts, errors = model_facts(shipped(model))
    assert errors == []
    assert facts is not None
    return facts


@pytest.mark.parametrize("model", ["qwen3_8b", "gpt_oss_120b", "minimax_m2"])
def test_a_family_without_an_entry_has_the_class_that_most_of_them_have(model: str) -> None:
    facts = facts_of(model)
    assert facts.family not in CLASSES
    assert class_of(facts) == SglangModelClass()


@pytest.mark.parametrize(
    ("model", "family"),
    [("deepseek", Family.DEEPSEEK), ("glm45", Family.GLM4_MOE), ("qwen3_next_80b", Family.QWEN3_NEXT)],
)
def test_a_family_with_an_entry_has_its_own_class(model: str, family: Family) -> None:
    assert class_of(facts_of(model)) is CLASSES[family]


def test_no_entry_says_only_what_is_the_default() -> None:
    assert [family for family, own in CLASSES.items() if own == SglangModelClass()] == []


def test_llama_spreads_attention_over_the_whole_tp_whatever_attention_dp_says() -> None:
    spread = Parallel(tp=8, attn_dp=8)
    assert shapes_of(workload_of(shipped("llama33_70b"), spread)) == shapes_of(workload_of(shipped("llama33_70b"), TP8))
