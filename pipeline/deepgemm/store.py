"""Compiled kernels addressed by content, shared by all recipes and all runs on a machine."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Generator, Sequence
from functools import lru_cache
from pathlib import Path

# Arguments that name places, not content; each is followed by its path.
PATH_ARGUMENTS = ("-o", "--output-file", "--include-path", "-I")


class Store:
    """A folder of cubins; an entry appears by rename, whole or not at all."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, digest: str) -> Path | None:
        """The cubin of this content, if it was compiled before."""
        path = self._path(digest)
        return path if path.exists() else None

    def put(self, digest: str, built: Path) -> Path:
        """Take over a compiled cubin (on the same file system or not)."""
        path = self._path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".put-", delete=False) as copy:
            copy.write(built.read_bytes())
            copy.flush()
            os.fsync(copy.fileno())
        Path(copy.name).replace(path)
        return path

    def drop(self, digest: str) -> None:
        """Forget an entry that was found to be damaged."""
        self._path(digest).unlink(missing_ok=True)

    @contextlib.contextmanager
    def try_lock(self, digest: str) -> Generator[bool]:
        """Yield whether this process may compile the content now; another that does is waited for by asking again.

        The kernel releases the lock when its owner dies, however it dies.
        """
        path = self.root / "locks" / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def _path(self, digest: str) -> Path:
        return self.root / "kernels" / digest[:2] / f"{digest}.cubin"


def kernel_digest(source: str, arguments: Sequence[str], version_text: str) -> str:
    """What decides a cubin's bytes: compiler, options, source and every header it may include (not their paths)."""
    options, folders = split_arguments(arguments)
    hashed = hashlib.sha256()
    for part in (version_text, *options, source, *map(tree_digest, folders)):
        hashed.update(len(part).to_bytes(8, "little") + part.encode())
    return hashed.hexdigest()


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(options that change the result, include directories) of a compiler call; input and output are dropped."""
    options: list[str] = []
    folders: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in PATH_ARGUMENTS:
            value = next(rest, "")
            if argument in ("-I", "--include-path"):
                folders.append(value)
        elif argument.startswith("-I"):
            folders.append(argument[2:])
        elif not argument.endswith(".cu"):
            options.append(argument)
    return options, folders


@lru_cache(maxsize=16)
def tree_digest(folder: str) -> str:
    """Hash of every file under an include directory, by relative path."""
    hashed = hashlib.sha256()
    root = Path(folder)
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        hashed.update(str(path.relative_to(root)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return hashed.hexdigest()
