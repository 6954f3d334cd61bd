"""Tell a good cubin from a stub, a torn file and another architecture's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError, ELFParseError
from elftools.elf.elffile import ELFFile

STUB_MARKER = b"PREHEAT-STUB"
# Every kernel entry, and nothing else, owns a section for its parameters (constant bank 0).
KERNEL_SECTION = ".nv.constant0."
# From ELF ABI 8 (CUDA 13) the architecture moved from the lowest byte of e_flags to the next one.
FIRST_ABI_WITH_SHIFTED_ARCH = 8
# ptxas (12.9 and 13, from sm_100 on) notes its arguments here; e_flags are the same for sm_100, sm_100a and sm_100f.
NOTE_OF_PTXAS = ".note.nv.tkinfo"
ARCH_ARGUMENT = re.compile(rb"-arch sm_(\d+)([af]?)\b")
# Which multiprocessors run a family's code (CUDA C++ Programming Guide, family-specific architecture features).
FAMILIES = {100: (100, 103), 103: (103,), 110: (110,), 120: (120, 121), 121: (121,)}


@dataclass(frozen=True, slots=True)
class CubinFacts:
    """What a cubin's own headers say."""

    sm: int
    is_family: bool
    """Whether it was compiled for a family (sm_100f), not for one architecture (sm_100a, sm_100)."""
    kernels: tuple[str, ...]

    @property
    def arch(self) -> str:
        """As a message names it."""
        return f"sm_{self.sm}f" if self.is_family else f"sm_{self.sm}"

    def runs_on(self, sm: int) -> bool:
        """Whether an sm_`sm` target can load it; DeepGEMM's own code uses what only one family or architecture has."""
        return sm in FAMILIES.get(self.sm, (self.sm,)) if self.is_family else sm == self.sm


def read_cubin(path: Path) -> CubinFacts:
    """Parse the headers of a cubin; ValueError says what is wrong with the file."""
    data_bytes = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(STUB_MARKER)) == STUB_MARKER:
            raise ValueError("is a stub of the stand-in compiler, not a cubin")
        file.seek(0)
        try:
            return _facts(ELFFile(file), data_bytes)
        except (ELFError, ELFParseError, UnicodeDecodeError, OSError, KeyError, TypeError) as error:
            raise ValueError(f"is not a readable ELF file: {error}") from error


def check_cubin(path: Path, sm: int) -> str | None:
    """What is wrong with this cubin for an sm_`sm` target, or None when it is good."""
    try:
        facts = read_cubin(path)
    except (OSError, ValueError) as error:
        return f"{path}: {error}"
    if not facts.runs_on(sm):
        return f"{path}: is for {facts.arch}, the target is sm_{sm}"
    if len(facts.kernels) != 1:
        return f"{path}: holds {len(facts.kernels)} kernels, DeepGEMM loads exactly one"
    return None


def _facts(elf: ELFFile, data_bytes: int) -> CubinFacts:
    header = elf.header
    if header["e_machine"] != "EM_CUDA":
        raise ValueError(f"is an ELF file for {header['e_machine']}, not for CUDA")
    for table, offset, size, count in (
        ("section", header["e_shoff"], header["e_shentsize"], header["e_shnum"]),
        ("program", header["e_phoff"], header["e_phentsize"], header["e_phnum"]),
    ):
        if offset + size * count > data_bytes:
            raise ValueError(f"is truncated: its {table} headers end past the {data_bytes} bytes of the file")
    kernels: list[str] = []
    is_family = False
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_NOBITS" and section["sh_offset"] + section["sh_size"] > data_bytes:
            raise ValueError(f"is truncated: section {section.name} ends past the {data_bytes} bytes of the file")
        if section.name.startswith(KERNEL_SECTION):
            kernels.append(section.name.removeprefix(KERNEL_SECTION))
        if section.name == NOTE_OF_PTXAS:
            is_family = _names_family(section.data())
    shifted = header["e_ident"]["EI_ABIVERSION"] >= FIRST_ABI_WITH_SHIFTED_ARCH
    sm = (header["e_flags"] >> 8 if shifted else header["e_flags"]) & 0xFF
    return CubinFacts(sm=sm, is_family=is_family, kernels=tuple(kernels))


def _names_family(note: bytes) -> bool:
    match = ARCH_ARGUMENT.search(note)
    return match is not None and match[2] == b"f"
