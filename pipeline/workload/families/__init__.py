"""One file for each family of models; a family is chosen by the config's `architectures`."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.workload.families import (
    deepseek,
    deepseek_v4,
    glm4_moe,
    gpt_oss,
    llama,
    mimo_v2,
    minimax_m2,
    qwen3,
    qwen3_next,
)
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import ModelFacts

Read = Callable[[Facts, str], ModelFacts]
MODULES = (deepseek, deepseek_v4, glm4_moe, gpt_oss, llama, mimo_v2, minimax_m2, qwen3, qwen3_next)
FAMILIES: dict[str, Read] = {name: module.read for module in MODULES for name in module.ARCHITECTURES}
# What a config names when it names no architecture.
MODEL_TYPES: dict[str, Read] = {name: module.read for module in MODULES for name in module.MODEL_TYPES}
