"""One file for each family of models: its facts and its linears. Chosen by the config's `architectures`."""

from __future__ import annotations

from pipeline.workload.families import deepseek

FAMILIES = dict.fromkeys(deepseek.ARCHITECTURES, deepseek)
