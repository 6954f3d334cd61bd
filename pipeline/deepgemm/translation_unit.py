"""Several kernels in one translation unit: the compiler reads DeepGEMM's headers once for all of them.

Most of nvcc's time on one kernel goes into the same 3 MB of headers. The unit is compiled to PTX, the PTX is cut into
one file for each kernel, and each goes through the assembler alone: the machine code is the same, byte for byte, as
that of the kernel compiled by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# What DeepGEMM writes into every source, both JIT generations: the address of the one kernel that it wants.
INSTANTIATION = re.compile(r"reinterpret_cast<void\*>\((?P<kernel>&.*?>)\);", re.DOTALL)
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
MARKER = "preheat_entry_"

HEADER_END = re.compile(r"^\.address_size \d+\n", re.MULTILINE)
# Comments and strings are matched so that what they hold is not taken for syntax.
PTX_TOKEN = re.compile(r'//[^\n]*|"[^"\n]*"|[{};]')
ENTRY = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+(?P<name>\w+)", re.MULTILINE)
MARKER_VALUE = re.compile(rf"\b{MARKER}(?P<number>\d+) = (?P<name>\w+);")


def kernel_of(source: str) -> str | None:
    """The C++ address of the one kernel that a source instantiates; None where it is not written as usual."""
    addresses = INSTANTIATION.findall(source)
    return addresses[0] if len(addresses) == 1 else None


def includes_of(source: str) -> list[str]:
    """The include lines of a source."""
    return INCLUDE.findall(source)


def combine(sources: Sequence[str]) -> str:
    """One source that instantiates the kernels of all; `split` finds them again by a device variable for each."""
    includes = dict.fromkeys(line for source in sources for line in includes_of(source))
    bodies: list[str] = []
    for number, source in enumerate(sources):
        marker = f'extern "C" __device__ void* const {MARKER}{number} = reinterpret_cast<void*>({kernel_of(source)});'
        bodies.append(f"namespace preheat_{number} {{\n{INCLUDE.sub('', source)}\n{marker}\n}}")
    return "\n".join([*includes, *bodies]) + "\n"


def split(ptx: str, number: int) -> list[tuple[str, str]]:
    """(entry name, PTX of that entry alone) for each source of `combine`; ValueError when one cannot be told apart."""
    header_end = HEADER_END.search(ptx)
    if header_end is None:
        raise ValueError("the compiler's PTX has no .address_size line")
    header = ptx[: header_end.end()]
    statements = _statements(ptx[header_end.end() :])
    entries = {int(marker["number"]): marker["name"] for marker in MARKER_VALUE.finditer(ptx)}
    if sorted(entries) != list(range(number)):
        raise ValueError(f"the compiler's PTX names {len(entries)} of {number} kernels")
    owners = [(statement, _entry_of(statement)) for statement in statements if MARKER not in statement]
    parts: list[tuple[str, str]] = []
    for index in range(number):
        needed = [statement for statement, entry in owners if entry in (None, entries[index])]
        parts.append((entries[index], header + "".join(needed)))
    return parts


def _statements(ptx: str) -> list[str]:
    """The PTX at file scope, cut after each closing brace and each semicolon outside of braces."""
    statements: list[str] = []
    start = depth = 0
    for token in PTX_TOKEN.finditer(ptx):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth == 0 and token[0] in ("}", ";"):
            statements.append(ptx[start : token.end()])
            start = token.end()
    return statements


def _entry_of(statement: str) -> str | None:
    match = ENTRY.search(statement)
    return match["name"] if match else None
