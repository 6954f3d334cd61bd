"""What the documents state is what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.coverage import DOCUMENT, TARGETS, all_rows, cells, discover, document, fast_part, row_of


def test_the_coverage_table_is_what_the_rules_derive() -> None:
    stale = "docs/coverage.md is out of date; run python benchmarks/coverage.py"
    assert fast_part(document(all_rows(), None)) == fast_part(DOCUMENT.read_text()), stale


@pytest.mark.slow
@pytest.mark.parametrize(("model", "layout"), [("qwen3_30b_a3b", "single"), ("llama33_70b", "tp8")])
def test_the_kernels_of_a_row_are_what_a_discovery_finds(tmp_path: Path, model: str, layout: str) -> None:
    row = row_of(model, layout)
    kernels = {target: discover([row], target, tmp_path / target) for target in TARGETS}
    assert f"| {' | '.join(cells(row, kernels))} |" in DOCUMENT.read_text()
