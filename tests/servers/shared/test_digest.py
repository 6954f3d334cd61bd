from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.servers.shared.digest import answer_digest
from tests.servers.shared.places import Place


@pytest.mark.parametrize("changed", ["arguments", "variables", "checkpoint", "environment", "versions", "nothing"])
def test_a_digest_holds_what_decides_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str):
    checkpoint = tmp_path / "checkpoint"
    arguments = ["--tp-size", "8", str(checkpoint)]
    inquiry = Place(tmp_path).inquiry(*arguments)
    (checkpoint / "config.json").write_text("{}")
    before = answer_digest(inquiry)
    if changed == "arguments":
        inquiry = replace(inquiry, variants={"as configured": ["--tp-size", "4", str(checkpoint)]})
    if changed == "variables":
        inquiry = replace(inquiry, variables={"FAKE_USE_DEEPGEMM_BMM": "1"})
    if changed == "environment":
        monkeypatch.setenv("FAKE_USE_DEEPGEMM_BMM", "1")
    if changed == "versions":
        versions = inquiry.starter.server.versions | {"flashinfer-python": "0.7.3"}
        server = replace(inquiry.starter.server, versions=versions)
        inquiry = replace(inquiry, starter=replace(inquiry.starter, server=server))
    if changed == "checkpoint":
        # Another folder: the digest of a folder is remembered while the process lives.
        other = tmp_path / "other"
        other.mkdir()
        (other / "config.json").write_text('{"hidden_size": 1}')
        variants = {"as configured": ["--tp-size", "8", str(other)]}
        inquiry = replace(inquiry, checkpoint=other, variants=variants)
    assert (answer_digest(inquiry) == before) == (changed == "nothing")


def test_a_digest_forgets_where_the_checkpoint_lies_and_variables_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    digests: set[str] = set()
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
        checkpoint = tmp_path / name
        (checkpoint / "config.json").write_text("{}")
        inquiry = replace(Place(tmp_path).inquiry(), checkpoint=checkpoint, variants={"one": [str(checkpoint)]})
        digests.add(answer_digest(inquiry))
        monkeypatch.setenv("OF_ANOTHER_SERVER", "1")
    assert len(digests) == 1
