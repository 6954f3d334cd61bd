"""Leave behind what a server needs: env.sh, and a manifest that says what is covered and by which versions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.deepgemm.classic_keys import include_folder, relocate, relocation
from pipeline.engine.context import View
from pipeline.engine.errors import StageError
from pipeline.engine.report import to_json, write_atomically
from pipeline.engine.stage import Result, Stage
from pipeline.export.env_script import env_script
from pipeline.export.manifest import manifest
from pipeline.slots import BAKED, PLACES, PROOF, RECIPE, RECIPE_YAML, TOOLKIT


@dataclass(kw_only=True)
class Export(Stage):
    """Every file by rename; an existing output stays valid at every moment."""

    relocate_to: str | None = None
    """Where deep_gemm will be installed on the serving machine (the package or its include folder); None means here.

    Only the classic JIT (0.1.x) needs it: its keys hold the include path.
    """

    reads = (RECIPE, RECIPE_YAML, PLACES, TOOLKIT, BAKED, PROOF)
    leaves_output = True

    def run(self, ctx: View) -> Result:
        """Writes manifest.json, env.sh and recipe.yaml into the output directory."""
        recipe = ctx[RECIPE]
        places = ctx[PLACES]
        include = include_folder(Path(self.relocate_to)) if self.relocate_to else None
        num_renamed = 0 if include is None else self._relocate(ctx, include)
        write_atomically(places.output / "env.sh", env_script(recipe, places))
        write_atomically(places.output / "recipe.yaml", ctx[RECIPE_YAML])
        contents = manifest(recipe, places, ctx[TOOLKIT], ctx[BAKED].problems, ctx[PROOF].keys_of_problem)
        if num_renamed:
            contents["enters_the_key"]["relocated_to"] = str(include)
        write_atomically(places.output / "manifest.json", to_json(contents))
        note = f", {num_renamed} kernels renamed for {self.relocate_to}" if num_renamed else ""
        return Result(
            f"{len(contents['files'])} files in {places.output}; source {places.output}/env.sh before the server{note}"
        )

    def _relocate(self, ctx: View, include: Path) -> int:
        """How many keys it renamed; StageError when they hold no path, or are not what this compiler gives."""
        record = relocation(ctx[BAKED].sources, ctx[TOOLKIT].release)
        if record is None:
            raise StageError(
                f"export.relocate_to={self.relocate_to}: this DeepGEMM leaves paths out of its keys, so nothing needs "
                "to be renamed; remove the option"
            )
        return len(relocate(ctx[PLACES].warm_cache, record, include))
