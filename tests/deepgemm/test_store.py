import multiprocessing
from pathlib import Path

from pipeline.deepgemm.store import Store, kernel_digest, split_arguments, tree_digest

ARGUMENTS = ["/tmp/a/kernel.cu", "--cubin", "--output-file", "/tmp/a/kernel.cubin", "-O3", "--include-path"]


def digest(folder: Path, **changes: str) -> str:
    tree_digest.cache_clear()
    source = changes.get("source", "code")
    arguments = [*ARGUMENTS, str(folder), *changes.get("flags", "").split()]
    return kernel_digest(source, arguments, changes.get("version", "13.0"))


def include(folder: Path, text: str = "header") -> Path:
    folder.mkdir(parents=True)
    (folder / "gemm.cuh").write_text(text)
    return folder


def test_paths_of_input_output_and_headers_do_not_matter_but_contents_do(tmp_path: Path):
    here = include(tmp_path / "venv_a")
    moved = include(tmp_path / "venv_b")
    edited = include(tmp_path / "edited", "other header")
    assert digest(here) == digest(moved)
    changed = {digest(edited), digest(here, source="x"), digest(here, flags="-lineinfo"), digest(here, version="13.1")}
    assert len(changed) == 4
    assert digest(here) not in changed


def test_both_spellings_of_the_include_flag_are_paths():
    assert split_arguments(["a.cu", "-I/x", "-o", "out", "-O3"]) == (["-O3"], ["/x"])
    assert split_arguments(["a.cu", "--include-path", "/x", "--output-file", "out", "-O3"]) == (["-O3"], ["/x"])


def test_what_was_put_is_found_whole(tmp_path: Path):
    store = Store(tmp_path / "store")
    built = tmp_path / "built"
    built.write_bytes(b"cubin")
    assert store.find("ab12") is None
    store.put("ab12", built)
    stored = store.find("ab12")
    assert stored is not None
    assert stored.read_bytes() == b"cubin"
    assert [path.name for path in stored.parent.iterdir()] == ["ab12.cubin"], "no temporary file is left"
    store.drop("ab12")
    assert store.find("ab12") is None


def test_a_lock_is_held_against_other_processes_and_ends_with_its_owner(tmp_path: Path):
    store = Store(tmp_path)
    with store.try_lock("d") as mine:
        assert mine
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(locks, (tmp_path,)) is False
    with store.try_lock("d") as mine:
        assert mine


def locks(root: Path) -> bool:
    """Whether this process gets the lock."""
    with Store(root).try_lock("d") as mine:
        return mine
