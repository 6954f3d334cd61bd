"""Adoption against the buffers that an installed SGLang really makes, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.buffers.decode_set import DecodeSize, decode_fields
from tests.buffers.test_adapters import expected_shape
from tests.buffers.test_decode_set import SMALL
from tests.conftest import PROJECT

# One worker runs them all: they share one install and, in test_server.py, one output.
pytestmark = [pytest.mark.server, pytest.mark.xdist_group("server")]

BATCH = 3
MAKERS = {"graph runner": "DecodeInputBuffers", "base runner": "SimpleNamespace"}
PIPELINED = replace(SMALL, has_pp_proxies=True)
# The server's own arguments, and the size that a recipe with the same layout has.
LAYOUTS: dict[str, tuple[dict[str, Any], DecodeSize]] = {
    "one GPU": ({}, SMALL),
    "several tokens": ({}, replace(SMALL, tokens_per_request=2, max_tokens=8)),
    "rope positions": ({}, replace(SMALL, is_multimodal=True)),
    "pipeline": ({"pp_size": 2}, PIPELINED),
    "several streams": ({"pp_size": 2}, replace(PIPELINED, streams=4)),
    "expert parallel": ({"tp_size": 2, "ep_size": 2}, replace(SMALL, counts_unpadded_tokens=True)),
    "data parallel": ({"tp_size": 2, "dp_size": 2, "enable_dp_attention": True}, replace(SMALL, num_dp_ranks=2)),
}
# The server has no pipeline, the recipe has: its proxies are missing.
MISFIT = "no pipeline"
MISFITTING: tuple[dict[str, Any], DecodeSize] = ({}, PIPELINED)
CASES = {
    (made_by, name): (*case, made_by) for made_by in MAKERS for name, case in (LAYOUTS | {MISFIT: MISFITTING}).items()
}

Answers = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def answers(sglang_python: str) -> Answers:
    """One start of the server's Python answers all cases; its imports take most of the time."""
    cases = [
        {"made_by": made_by, "flags": flags, "size": asdict(size) | {"kind": size.kind.name}, "batch": BATCH}
        for flags, size, made_by in CASES.values()
    ]
    done = subprocess.run(
        [str(Path(sglang_python).absolute()), "-m", "tests.buffers.sglang_buffers", json.dumps(cases)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    # The server may log to standard output before.
    return dict(zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("made_by", MAKERS)
def test_the_servers_own_buffers_are_adopted_and_cut_to_a_batch(answers: Answers, made_by: str, name: str) -> None:
    _, size = LAYOUTS[name]
    answer = answers[made_by, name]
    fields = {spec.field.value: spec.buffer.dtype for spec in decode_fields(size)}
    assert answer["class"] == MAKERS[made_by]
    assert answer["dtypes"] == fields
    for field, shape in answer["shapes"].items():
        width = size.streams * size.hidden if field.startswith("pp_proxy_tensors.") else None
        rows = expected_shape(field, size, BATCH)
        assert tuple(shape) == (rows if width is None else (rows[0], width)), field


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("made_by", MAKERS)
def test_nothing_of_the_servers_is_copied(answers: Answers, made_by: str, name: str) -> None:
    assert answers[made_by, name]["copied"] == []


@pytest.mark.parametrize("made_by", MAKERS)
def test_sequence_lengths_that_the_server_zeroed_are_refilled_in_its_own_memory(answers: Answers, made_by: str) -> None:
    assert answers[made_by, "one GPU"]["seq_lens"] == {"seq_lens": [1] * BATCH, "seq_lens_cpu": [1] * BATCH}


@pytest.mark.parametrize("made_by", MAKERS)
def test_what_the_server_lacks_is_named(answers: Answers, made_by: str) -> None:
    error = answers[made_by, MISFIT]["error"]
    assert "pp_proxy_tensors.hidden_states: is missing; pp_proxy_tensors.residual: is missing" in error
