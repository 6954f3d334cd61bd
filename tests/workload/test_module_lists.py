from __future__ import annotations

from typing import Any

from pipeline.workload.module_lists import with_every_layer


def config(*entries: str) -> dict[str, Any]:
    """A config of two layers that leaves these modules alone."""
    return {"num_hidden_layers": 2, "quantization_config": {"modules_to_not_convert": list(entries)}}


def entries_of(expanded: dict[str, Any]) -> list[str]:
    """What it leaves alone."""
    return expanded["quantization_config"]["modules_to_not_convert"]


def test_a_star_stands_for_every_layer() -> None:
    expanded = with_every_layer(config("lm_head", "model.layers.*.mlp.gate"))
    assert entries_of(expanded) == ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]


def test_a_regular_expression_stays_as_it_is() -> None:
    assert entries_of(with_every_layer(config("re:model.layers.*.mlp.gate"))) == ["re:model.layers.*.mlp.gate"]


def test_the_lists_of_a_language_model_inside_another_are_expanded_too() -> None:
    expanded = with_every_layer({"text_config": config("model.layers.*.mlp.gate"), "vision_config": {}})
    assert len(entries_of(expanded["text_config"])) == 2


def test_a_config_without_lists_is_the_same() -> None:
    for plain in ({"hidden_size": 1}, {"quantization_config": {"quant_method": "fp8"}}, {"quantization_config": None}):
        assert with_every_layer(plain) == plain
