"""One worker of the farm: from sources to checked cubins, several kernels at a time where that is possible."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.deepgemm.cubin import check_cubin, read_cubin
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.deepgemm.translation_unit import combine, split
from pipeline.engine.children import Children

log = logging.getLogger("preheat")


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel to compile: its key, its source text and the arguments DeepGEMM gave its compiler."""

    key: str
    text: str
    arguments: tuple[str, ...]

    @property
    def options(self) -> tuple[str, ...]:
        """The arguments but for input, output and what is to come out."""
        options: list[str] = []
        rest = iter(self.arguments)
        for argument in rest:
            if argument in ("-o", "--output-file"):
                next(rest, None)
            elif argument not in ("--cubin", "-cubin") and not argument.endswith(".cu"):
                options.append(argument)
        return tuple(options)


class Rejected(Exception):
    """The compiler, or what it made, was not good; the message has the compiler's own words."""


@dataclass(slots=True)
class Compiler:
    """Runs nvcc in a folder of its own; `cpu_s` adds up what it took."""

    toolkit: Toolkit
    children: Children
    folder: Path
    sm: int
    cpu_s: float = 0.0

    def build(self, sources: Sequence[Source]) -> Iterator[tuple[Source, Path | str]]:
        """For each source, as soon as it is made, a checked cubin in the folder, or what nvcc said against it.

        Sources with the same options are compiled together; what does not come out of that is compiled by itself, so
        that a message is about one kernel.
        """
        left = list(sources)
        if len(sources) > 1:
            try:
                for source, cubin in self._together(sources):
                    left.remove(source)
                    yield source, cubin
            except (Rejected, ValueError) as error:
                log.info("%d kernels could not be compiled together and are compiled apart: %s", len(left), error)
        for number, source in enumerate(left):
            yield source, self._alone(number, source)

    def _alone(self, number: int, source: Source) -> Path | str:
        made = self._place(f"alone-{number}") / "kernel.cubin"
        (made.parent / "kernel.cu").write_text(source.text)
        try:
            self._nvcc(made.parent / "kernel.cu", "--cubin", made, source.options)
        except Rejected as rejected:
            return str(rejected)
        wrong = check_cubin(made, self.sm)
        return made if wrong is None else f"nvcc succeeded but {wrong}"

    def _together(self, sources: Sequence[Source]) -> Iterator[tuple[Source, Path]]:
        place = self._place("together")
        options = sources[0].options
        (place / "kernel.cu").write_text(combine([source.text for source in sources]))
        self._nvcc(place / "kernel.cu", "--ptx", place / "kernel.ptx", options)
        parts = split((place / "kernel.ptx").read_text(), len(sources))
        for number, (source, (entry, ptx)) in enumerate(zip(sources, parts, strict=True)):
            made = self._place(f"entry-{number}") / "kernel.cubin"
            (made.parent / "kernel.ptx").write_text(ptx)
            self._nvcc(made.parent / "kernel.ptx", "--cubin", made, options)
            if (wrong := check_cubin(made, self.sm)) is not None:
                raise Rejected(wrong)
            if read_cubin(made).kernels != (entry,):
                raise Rejected(f"{made} does not hold {entry}")
            yield source, made

    def _place(self, name: str) -> Path:
        place = self.folder / name
        place.mkdir()
        return place

    def _nvcc(self, source: Path, kind: str, made: Path, options: Sequence[str]) -> None:
        command = [str(self.toolkit.nvcc), source.name, kind, "--output-file", str(made), *options]
        log = made.with_suffix(".log")
        with log.open("w") as output:
            # Temporary files of a compiler that is killed go with the folder.
            environment = {**os.environ, "TMPDIR": str(made.parent)}
            child = self.children.start(command, cwd=made.parent, env=environment, stdout=output, stderr=output)
            ended = self.children.wait(child)
        self.cpu_s += ended.cpu_s
        if ended.returncode != 0:
            raise Rejected(f"nvcc exit {ended.returncode}: {log.read_text(errors='replace').strip()}")
