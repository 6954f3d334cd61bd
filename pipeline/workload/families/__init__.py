"""One file for each family of models: its facts and its linears. Chosen by the config's `architectures`."""

from __future__ import annotations

from pipeline.workload.families import deepseek

FAMILIES = {name: deepseek for name in deepseek.ARCHITECTURES}
