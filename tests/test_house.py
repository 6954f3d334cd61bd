from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages import STAGES

PROJECT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PRODUCT = [
    PROJECT / "run.py",
    *sorted((PROJECT / "pipeline").rglob("*.py")),
    *sorted((PROJECT / "stages").glob("*.py")),
]
TESTS = sorted((PROJECT / "tests").rglob("*.py"))
SCHEMAS = [
    PROJECT / "pipeline" / "recipe.py",
    PROJECT / "pipeline" / "target.py",
    PROJECT / "pipeline" / "workload" / "hf_config.py",
    PROJECT / "pipeline" / "workload" / "parallel.py",
    *sorted((PROJECT / "pipeline" / "servers").glob("*/flags.py")),
    *sorted((PROJECT / "stages").glob("*.py")),
]
# Programs of other languages that are written in Python's syntax: Triton's kernels take pointers and sizes one by one.
NOT_PYTHON = PROJECT / "pipeline" / "kernels" / "triton_kernels.py"
MAX_FUNCTION_LINES = 40
MAX_FILE_LINES = 250
# Names that say nothing of what they hold.
VAGUE_NAMES = {"found", "at", "held", "others", "never", "told", "tell", "heard", "there", "said"}


def name_of(path: Path) -> str:
    return str(path.relative_to(PROJECT))


def schemas_in(path: Path) -> Iterator[ast.ClassDef]:
    """The config dataclasses of a file: those that are made by keyword."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and any("kw_only=True" in ast.unparse(made) for made in node.decorator_list):
            yield node


def is_docstring(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@pytest.mark.parametrize(
    "command",
    [
        ("ruff", "format", "--check", "."),
        ("ruff", "check", "."),
        ("lint-imports",),
        ("pyright", "--pythonpath", sys.executable),
    ],
    ids=" ".join,
)
def test_the_tools_that_check_the_code_have_nothing_to_say(command: tuple[str, ...]):
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=PROJECT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("path", SCHEMAS, ids=name_of)
def test_every_option_has_a_line_under_it_that_says_what_it_is(path: Path):
    bare = [
        f"{path.name}: {schema.name}.{ast.unparse(field.target)}"
        for schema in schemas_in(path)
        for field, after in zip(schema.body, [*schema.body[1:], None], strict=True)
        if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation)
        if not is_docstring(after)
    ]
    assert bare == []


@pytest.mark.parametrize("path", SCHEMAS, ids=name_of)
def test_a_schema_is_one_that_hydra_can_compose(path: Path):
    """Frozen dataclasses and Literal are refused, and tuples come back as lists."""
    for schema in schemas_in(path):
        assert "frozen=True" not in " ".join(map(ast.unparse, schema.decorator_list)), schema.name
        for field in schema.body:
            if isinstance(field, ast.AnnAssign) and "ClassVar" not in ast.unparse(field.annotation):
                kind = ast.unparse(field.annotation)
                assert "Literal" not in kind, f"{schema.name}: {kind}"
                assert "tuple" not in kind, f"{schema.name}: {kind}"


def test_the_files_with_schemas_have_schemas():
    schemas = {name_of(path): [schema.name for schema in schemas_in(path)] for path in SCHEMAS}
    assert "Recipe" in schemas["pipeline/recipe.py"]
    assert "Parallel" in schemas["pipeline/workload/parallel.py"]
    assert schemas["pipeline/servers/sglang/flags.py"] == ["SglangFlags"]
    assert all(schemas[f"stages/{name}.py"] for name in STAGES)


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_a_file_holds_one_idea_and_a_function_fits_on_a_screen(path: Path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    long = (
        []
        if path == NOT_PYTHON
        else [
            f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
            if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
        ]
    )
    assert long == []


@pytest.mark.parametrize("path", [*PRODUCT, *TESTS], ids=name_of)
def test_an_assignment_has_one_target(path: Path):
    packed = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)
    ]
    assert packed == []


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_a_docstring_says_something_itself(path: Path):
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef)
    documented = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, nodes)]
    assert [text for node in documented if (text := ast.get_docstring(node) or "").startswith("See ")] == []


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_a_name_says_what_it_holds(path: Path):
    vague: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            vague |= {node.id} & VAGUE_NAMES
        elif isinstance(node, ast.arg):
            vague |= {node.arg} & VAGUE_NAMES
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            vague |= {node.name} & VAGUE_NAMES
    assert vague == set()


def test_no_two_classes_of_the_product_share_a_name():
    homes: dict[str, set[str]] = {}
    for path in PRODUCT:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, set()).add(name_of(path))
    assert {name: sorted(files) for name, files in homes.items() if len(files) > 1} == {}


@pytest.mark.parametrize("path", PRODUCT, ids=name_of)
def test_the_code_is_plain_ascii(path: Path):
    assert path.read_bytes().isascii()


@pytest.mark.parametrize(("name", "stage"), STAGES.items(), ids=list(STAGES))
def test_a_stage_its_module_and_its_name_in_a_recipe_share_one_stem(name: str, stage: type):
    assert stage.__module__ == f"stages.{name}"
    assert stage.__name__.lower() == name.replace("_", "")
    assert Path(inspect.getfile(stage)).name == f"{name}.py"


def test_importing_the_program_does_nothing():
    script = (
        "import json, os, sys, threading\n"
        "before = dict(os.environ)\n"
        "import stages, run\n"
        "print(json.dumps({\n"
        "    'environment': dict(os.environ) == before,\n"
        "    'heavy': [name for name in ('torch', 'flashinfer', 'deep_gemm') if name in sys.modules],\n"
        "    'threads': threading.active_count(),\n"
        "}))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"environment": True, "heavy": [], "threads": 1}


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_tests_replace_nothing_of_ours(path: Path):
    """A fake implements the contract; mocks and patched attributes do not."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "mock" not in ast.unparse(node), f"line {node.lineno}"
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "monkeypatch":
            assert node.attr not in ("setattr", "delattr"), f"line {node.lineno}"
