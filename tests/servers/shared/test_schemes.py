from __future__ import annotations

from pipeline.servers.shared.schemes import unloadable, with_head, with_schemes
from pipeline.workload.linears import Linear, NotDeepGemm, Role, Split
from pipeline.workload.scheme import PLAIN, Format, Scheme

BLOCKS = Scheme(format=Format.FP8_BLOCK, text="FP8 with 128x128 scale blocks", block=(128, 128), method="fp8")
OUT = Linear("self_attn.o_proj", Role.ATTENTION, split=Split.ROW, parts=(64,), k=128, layers=(0, 1, 2, 5))


def first_layer_plain(_: str, layer: int) -> Scheme:
    """As a checkpoint answers that keeps layer 0 in its own dtype."""
    return PLAIN if layer == 0 else BLOCKS


def test_a_linear_splits_where_its_layers_are_stored_differently() -> None:
    plain, quantised = with_schemes([OUT], first_layer_plain)
    assert (plain.layers, plain.scheme) == ((0,), PLAIN)
    assert (quantised.layers, quantised.scheme) == ((1, 2, 5), BLOCKS)


def test_a_linear_of_one_scheme_stays_whole() -> None:
    (linear,) = with_schemes([OUT], lambda _name, _layer: BLOCKS)
    assert linear.layers == OUT.layers


def test_a_refusal_is_told_once_with_the_first_linear_that_meets_it() -> None:
    refused = Scheme(format=Format.FP8_BLOCK, text="", block=(128, 128), refusal="scales of activations are static")
    linears = with_schemes([OUT], lambda _name, layer: refused if layer > 1 else BLOCKS)
    assert unloadable([*linears, *linears]) == ["self_attn.o_proj of layer 2: scales of activations are static"]


def test_the_reason_of_a_quantised_head_names_its_scheme() -> None:
    entries = [NotDeepGemm("mlp.gate", "a router"), NotDeepGemm("lm_head", "bf16")]
    assert with_head(entries, PLAIN) == entries
    gate, head = with_head(entries, Scheme(format=Format.NVFP4, text="NVFP4", method="modelopt_fp4"))
    assert gate == entries[0]
    assert head.reason.startswith("NVFP4:")
