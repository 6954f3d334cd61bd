"""A CUDA toolkit that compiles nothing: its nvcc writes a small valid cubin for the architecture it is asked for.

It keeps the contract that the farm relies on (version text, --dryrun, arguments, exit codes), logs every kernel it
compiles, and can be told to be slow or to reject a kernel.
"""

from __future__ import annotations

import re
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

VERSION = """nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2025 NVIDIA Corporation
Built on Wed_Aug_20_01:58:59_PM_PDT_2025
Cuda compilation tools, release {release}, V{release}.88
Build cuda_{release}.fake
"""

NVCC = """#!{python} -IS
import os, re, sys, time
sys.path.insert(0, {tests!r})
from fake_toolkit import cubin, ptx
arguments = sys.argv[1:]
if "--version" in arguments:
    sys.stdout.write({version!r})
    sys.exit(0)
if "--dryrun" in arguments:
    print("#$ TOP={home}/bin/..", file=sys.stderr)
    sys.exit(0)
source = open(next(word for word in arguments if word.endswith((".cu", ".ptx")))).read()
output = arguments[arguments.index("--output-file") + 1]
arch, variant = re.search(r"sm_([0-9]+)([af]?)", " ".join(arguments)).groups()
time.sleep({delay_s})
if {reject!r} and {reject!r} in source:
    print("kernel.cu(7): error: rejected by the fake nvcc", file=sys.stderr)
    sys.exit(2)
if "--ptx" in arguments:
    open(output, "w").write(ptx(source))
    sys.exit(0)
with open({log!r}, "a") as log:
    log.write(source.replace("\\n", " ") + "\\n")
with open(output, "wb") as file:
    entry = (re.findall(r"[.]entry (\\w+)", source) or ["kernel0"])[0]
    file.write(cubin(int(arch), variant=variant, entry=entry))
"""


@dataclass(frozen=True)
class FakeToolkit:
    """Where the fake toolkit is; `compiled` lists the sources that its nvcc finished, in order."""

    home: Path
    log: Path

    @property
    def compiled(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def make_toolkit(home: Path, *, release: str = "13.0", delay_s: float = 0.0, reject: str = "") -> FakeToolkit:
    """Write bin/nvcc under `home`; calling again changes its behaviour but not its version text."""
    log = home / "compiled.log"
    nvcc = home / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True, exist_ok=True)
    nvcc.write_text(
        NVCC.format(
            python=sys.executable,
            tests=str(Path(__file__).parent),
            version=VERSION.format(release=release),
            home=home,
            delay_s=delay_s,
            reject=reject,
            log=str(log),
        )
    )
    nvcc.chmod(0o755)
    return FakeToolkit(home, log)


def ptx(source: str) -> str:
    """PTX with one entry for each address that a source takes, and the device variable that holds it."""
    addresses = re.findall(r"(preheat_entry_\d+) = reinterpret_cast<void\*>\(&(\w+)<(\w+)>\)", source)
    entries = dict.fromkeys(f"{name}_{argument}" for _, name, argument in addresses)
    lines = [".version 9.0", ".target sm_90a", ".address_size 64", ""]
    lines += [f".entry {entry} ( .param .u64 a )\n;" for entry in entries]
    lines += [f".global .align 8 .u64 {marker} = {name}_{argument};" for marker, name, argument in addresses]
    lines += [".global .align 1 .b8 shared_by_all[1];"]
    lines += [f".entry {entry} ( .param .u64 a )\n{{\n{{ // }}\n}}\nret; // {entry}\n}}" for entry in entries]
    return "\n".join(lines) + "\n"


def cubin(sm: int, *, variant: str = "", kernels: int = 1, abi: int = 8, entry: str = "kernel0") -> bytes:
    """A CUDA ELF file with one parameter section for each kernel, as nvcc 13 (ABI 8) or nvcc 12 (ABI 7) marks it.

    It carries ptxas's note of its arguments, which names the variant of the architecture: "", "a" or "f".
    """
    entries = [entry, *(f"kernel{index}" for index in range(1, kernels))][:kernels]
    note = f"ptxas\0-arch sm_{sm}{variant} -m 64 \0".encode().ljust(32, b"\0")
    bodies = {f".nv.constant0.{name}": b"\x01" * 16 for name in entries} | {".note.nv.tkinfo": note}
    names = ["", ".shstrtab", *bodies]
    offsets: list[int] = []
    strings = b""
    for name in names:
        offsets.append(len(strings))
        strings += name.encode() + b"\0"
    content = b"".join(bodies.values())
    strings_offset = 64 + len(content)
    table_offset = (strings_offset + len(strings) + 7) // 8 * 8
    headers = struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    headers += struct.pack("<IIQQQQIIQQ", offsets[1], 3, 0, 0, strings_offset, len(strings), 0, 0, 1, 0)
    body_offset = 64
    for offset, body in zip(offsets[2:], bodies.values(), strict=True):
        headers += struct.pack("<IIQQQQIIQQ", offset, 1, 2, 0, body_offset, len(body), 0, 0, 8, 0)
        body_offset += len(body)
    flags = sm << 8 if abi >= 8 else sm
    ident = b"\x7fELF" + bytes([2, 1, 1, 0x41, abi]) + b"\0" * 7
    elf_type = 2
    machine = 190
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", elf_type, machine, 1, 0, 0, table_offset, flags, 64, 56, 0, 64, len(names), 1
    )
    return (header + content + strings).ljust(table_offset, b"\0") + headers
