"""What stands in a plan's place where the rules do not know the recipe's model, and the server is asked instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.workload.families import FAMILIES
from pipeline.workload.hf_config import Facts, Model, architecture, read_config, read_hf_quant_config
from pipeline.workload.parallel import Parallel, partition_errors

HINT = "discovery=server asks the server"
# Where a config of several parts keeps its language model, if not in text_config: InternVL and DeepSeek-VL2.
LANGUAGE_MODELS = ("llm_config", "language_config")


@dataclass(frozen=True, slots=True)
class NoRules:
    """`subjects` are what the rules do not know: architectures, or choices of the server."""

    subjects: tuple[str, ...]
    num_ranks: int

    @property
    def sentence(self) -> str:
        """What plan, report and every stage that needs a list by rules say."""
        return f"no rules for {', '.join(self.subjects)}: the server is asked"

    @property
    def nothing_to_run(self) -> str:
        """Why a stage that works on the layers' shapes is skipped."""
        return f"{self.sentence}; without rules no shapes are known here"


def architecture_without_rules(model: Model) -> str | None:
    """The architecture that the config names, where no family reads it; None where one does, or where it names none."""
    config, errors = read_config(model)
    _, more_errors = read_hf_quant_config(model)
    name = None if errors or more_errors else architecture(config)
    return None if name is None or name in FAMILIES else name


def pipeline_errors(model: Model, parallel: Parallel) -> list[str]:
    """Why the layers cannot be split over the pipeline, one line each; the server splits them by its own rule."""
    if parallel.pp == 1:
        return []
    config, _ = read_config(model)
    parts = [config, *(part for name in LANGUAGE_MODELS if isinstance(part := config.get(name), Mapping))]
    for part in parts:
        # Facts looks into text_config itself.
        facts = Facts(part, "")
        num_layers = facts.integer("num_hidden_layers")
        if not facts.errors:
            return partition_errors(parallel, num_layers)
    return [
        f"parallel.pp {parallel.pp}: the config names no num_hidden_layers, so nobody can say which layers a rank "
        "holds; set parallel.pp=1"
    ]
