"""Give every linear its scheme: layers of one linear that are stored differently become linears of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pipeline.workload.linears import Linear, NotDeepGemm
from pipeline.workload.scheme import Format, Scheme

SchemeOf = Callable[[str, int], Scheme]
"""The scheme of a linear, by its name, in a layer."""
HEAD = "lm_head"


def with_schemes(linears: Iterable[Linear], scheme_of: SchemeOf) -> list[Linear]:
    """The same linears in the same order, each as many times as its layers have schemes."""
    return [part for linear in linears for part in _by_scheme(linear, scheme_of)]


def _by_scheme(linear: Linear, scheme_of: SchemeOf) -> list[Linear]:
    layers_of: dict[Scheme, list[int]] = {}
    for layer in linear.layers:
        layers_of.setdefault(scheme_of(linear.name, layer), []).append(layer)
    return [replace(linear, scheme=scheme, layers=tuple(layers)) for scheme, layers in layers_of.items()]


def unloadable(linears: Iterable[Linear]) -> list[str]:
    """Why the server would refuse to load some of these linears, a line for each reason."""
    refused: dict[str, Linear] = {}
    for linear in linears:
        if linear.scheme.refusal is not None:
            refused.setdefault(linear.scheme.refusal, linear)
    return [f"{linear.name} of layer {linear.layers[0]}: {reason}" for reason, linear in refused.items()]


def with_head(entries: Sequence[NotDeepGemm], head: Scheme) -> list[NotDeepGemm]:
    """The entries with the head's own storage for its reason."""
    if head.format is Format.PLAIN:
        return list(entries)
    reason = f"{head.text}: the head of no server runs on DeepGEMM; last pipeline stage only"
    return [NotDeepGemm(HEAD, reason) if entry.layer == HEAD else entry for entry in entries]
