"""Which rules hold in which release."""

from __future__ import annotations

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.servers.shared.flags import release
from pipeline.servers.vllm.versions import CHANGES, NEWEST
from tests.servers.vllm.derived import vllm


def test_the_report_names_the_rules_of_the_release() -> None:
    assert len(vllm(version="0.33.0").rules.used) == len(CHANGES)
    assert len(vllm(version="0.11.0").rules.used) == 0
    assert vllm(version="0.14.2").rules.used[-1].startswith("vllm from 0.14.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.33.0", (0, 33, 0)), ("0.21.1rc1.dev339+g19", (0, 21, 1)), ("0.26", (0, 26, 0)), ("main", None), ("", None)],
)
def test_a_version_is_read_from_what_builds_call_themselves(text: str, expected: tuple[int, int, int] | None) -> None:
    assert release(text) == expected
    assert max([*CHANGES, NEWEST]) == NEWEST


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server.version 'main' is not a version"):
        vllm(version="main")
