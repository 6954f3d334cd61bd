from __future__ import annotations

import pytest

from pipeline.deepgemm.translation_unit import combine, includes_of, kernel_of, split
from tests.fake_toolkit import ptx


def source(number: int, header: str = "gemm.cuh") -> str:
    """A source as DeepGEMM writes it."""
    return f"""
#include <{header}>

using namespace deep_gemm;

static void __instantiate_kernel() {{
    auto ptr = reinterpret_cast<void*>(&gemm<
        {number}
    >);
}};
"""


def one_line(number: int) -> str:
    return source(number).replace("<\n        ", "<").replace("\n    >", ">")


def test_the_kernel_of_a_source_is_the_one_address_it_takes():
    address = kernel_of(source(3))
    assert address is not None
    assert "".join(address.split()) == "&gemm<3>"
    assert kernel_of("int main() {}") is None
    assert kernel_of(source(1) + source(2)) is None


def test_a_unit_names_each_header_once_and_each_kernel_by_a_number():
    unit = combine([source(1), source(2, "other.cuh"), source(3)])
    assert [line.strip() for line in includes_of(unit)] == ["#include <gemm.cuh>", "#include <other.cuh>"]
    assert unit.index("other.cuh") < unit.index("namespace preheat_0")
    assert [f"preheat_entry_{number} = " in unit for number in range(4)] == [True, True, True, False]


def test_splitting_gives_each_source_its_own_entry_and_what_is_common():
    parts = split(ptx(combine([one_line(7), one_line(5)])), 2)
    assert [name for name, _ in parts] == ["gemm_7", "gemm_5"]
    for name, text in parts:
        other = "gemm_5" if name == "gemm_7" else "gemm_7"
        assert text.startswith(".version")
        assert f"ret; // {name}" in text
        assert "shared_by_all" in text
        assert other not in text
        assert "preheat" not in text
        assert text.endswith(f"ret; // {name}\n}}")


def test_two_sources_of_one_kernel_get_the_same_entry():
    first, second = split(ptx(combine([one_line(7), one_line(7)])), 2)
    assert first == second


@pytest.mark.parametrize("wrong", ["", ".version 9.0\n.address_size 64\n.entry gemm_1 ()\n{ ret; }\n"])
def test_ptx_that_names_no_kernel_is_refused(wrong: str):
    with pytest.raises(ValueError, match="the compiler's PTX"):
        split(wrong, 1)
