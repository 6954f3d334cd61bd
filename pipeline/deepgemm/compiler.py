"""Calls of nvcc: from sources to checked cubins, several kernels in one call where that is possible."""

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
class Nvcc:
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
        remaining = list(sources)
        if len(sources) > 1:
            try:
                for source, cubin in self._together(sources):
                    remaining.remove(source)
                    yield source, cubin
            except (Rejected, ValueError) as error:
                log.info("%d kernels could not be compiled together and are compiled apart: %s", len(remaining), error)
        for number, source in enumerate(remaining):
            yield source, self._alone(number, source)

    def _alone(self, number: int, source: Source) -> Path | str:
        cubin = self._new_folder(f"alone-{number}") / "kernel.cubin"
        (cubin.parent / "kernel.cu").write_text(source.text)
        try:
            self._call(cubin.parent / "kernel.cu", "--cubin", cubin, source.options)
        except Rejected as rejected:
            return str(rejected)
        fault = check_cubin(cubin, self.sm)
        return cubin if fault is None else f"nvcc succeeded but {fault}"

    def _together(self, sources: Sequence[Source]) -> Iterator[tuple[Source, Path]]:
        folder = self._new_folder("together")
        options = sources[0].options
        (folder / "kernel.cu").write_text(combine([source.text for source in sources]))
        self._call(folder / "kernel.cu", "--ptx", folder / "kernel.ptx", options)
        parts = split((folder / "kernel.ptx").read_text(), len(sources))
        for number, (source, (entry, ptx)) in enumerate(zip(sources, parts, strict=True)):
            cubin = self._new_folder(f"entry-{number}") / "kernel.cubin"
            (cubin.parent / "kernel.ptx").write_text(ptx)
            self._call(cubin.parent / "kernel.ptx", "--cubin", cubin, options)
            if (fault := check_cubin(cubin, self.sm)) is not None:
                raise Rejected(fault)
            if read_cubin(cubin).kernels != (entry,):
                raise Rejected(f"{cubin} does not hold {entry}")
            yield source, cubin

    def _new_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        return folder

    def _call(self, source: Path, kind: str, output: Path, options: Sequence[str]) -> None:
        command = [str(self.toolkit.nvcc), source.name, kind, "--output-file", str(output), *options]
        messages = output.with_suffix(".log")
        with messages.open("w") as file:
            # Temporary files of a compiler that is killed go with the folder.
            environment = {**os.environ, "TMPDIR": str(output.parent)}
            child = self.children.start(command, cwd=output.parent, env=environment, stdout=file, stderr=file)
            ended = self.children.wait(child)
        self.cpu_s += ended.cpu_s
        if ended.returncode != 0:
            raise Rejected(f"nvcc exit {ended.returncode}: {messages.read_text(errors='replace').strip()}")
