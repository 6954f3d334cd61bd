from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, fields
from enum import Enum
from typing import Any, get_args, get_type_hints

import pytest

from pipeline.servers.registry import SERVERS
from pipeline.servers.sglang.flags import WITHOUT_GRAPHS, FusedShared, MoeRunner, SglangFlags
from pipeline.servers.shared.flags import ServerFlags, as_text, flag, release
from pipeline.servers.vllm.flags import MoeBackend, VllmFlags, Warmup

# Flags without a spelling and without a variable, and how the server learns of them.
SPELLED_BY_NOBODY = {
    "name": "chooses the class of the flags and the rules",
    "version": "chooses among rules; an installed server has its own",
    "args": "is appended to the arguments as it was typed",
    "python": "is the Python in which the server is started",
    "start_limit_s": "is kept by whoever starts the server",
    "tokens_per_request": "is part of the arguments for speculative decoding",
    "mtp": "stands for several arguments, which SglangFlags.arguments adds; vLLM is not started",
    "served_elsewhere": "describes a build of the server; no release has an argument for it",
}
SPELLED_BY_NOBODY_IN = {
    "sglang": {},
    "vllm": {"deepep_mode": "is one half of --all2all-backend; vLLM is not started"},
}
FLAGS = {name: server.flags for name, server in SERVERS.items()}


def values(kind: Any, default: Any) -> list[Any]:
    """Values of a type that differ from the default, every member of an enum among them."""
    kinds = [kind for kind in get_args(kind) or (kind,) if kind is not type(None)]
    (only,) = kinds
    if issubclass(only, Enum):
        return [member for member in only if member is not default]
    if only is bool:
        return [value for value in (True, False) if value is not default]
    assert only is int, f"no values of {only} are made here; add them"
    return [7, 0] if default is None else [default + 1, default + 7]


def spelled(flags: type[ServerFlags]) -> Iterator[Field[Any]]:
    return (option for option in fields(flags) if option.metadata.get("spelling") is not None)


def variable_flags(flags: type[ServerFlags]) -> Iterator[Field[Any]]:
    return (option for option in fields(flags) if option.metadata.get("variable") is not None)


def cases(select: Any) -> list[Any]:
    return [
        pytest.param(flags, option, value, id=f"{name}-{option.name}={value}")
        for name, flags in FLAGS.items()
        for option in select(flags)
        for value in values(get_type_hints(flags)[option.name], option.default)
    ]


def words_for(spelling: Any, value: Any) -> list[str]:
    if isinstance(spelling, Mapping):
        return [typing.cast(Mapping[Any, str], spelling)[value]]
    if value is True:
        return [spelling] if isinstance(spelling, str) else list(spelling)
    return [spelling, value.value if isinstance(value, Enum) else str(value)]


@pytest.mark.parametrize("name", SERVERS)
def test_a_flag_has_a_spelling_or_a_variable_or_a_reason_why_not(name: str):
    flags = FLAGS[name]
    bare = {option.name for option in fields(flags)}
    bare -= {option.name for option in (*spelled(flags), *variable_flags(flags))}
    assert bare == {*SPELLED_BY_NOBODY, *SPELLED_BY_NOBODY_IN[name]}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_defaults_are_left_to_the_server(flags: type[ServerFlags]):
    assert flags().arguments() == []
    assert flags().variables() == {}


@pytest.mark.parametrize(("flags", "option", "value"), cases(spelled))
def test_a_flag_that_was_set_is_an_argument_in_the_server_s_spelling(
    flags: type[ServerFlags], option: Field[Any], value: Any
):
    chosen = flags(**{option.name: value})
    assert chosen.arguments() == words_for(option.metadata["spelling"], value)
    assert chosen.variables() == {}


@pytest.mark.parametrize(("flags", "option", "value"), cases(variable_flags))
def test_a_flag_that_was_set_is_a_variable_in_the_server_s_spelling(
    flags: type[ServerFlags], option: Field[Any], value: Any
):
    chosen = flags(**{option.name: value})
    text = str(value.value if isinstance(value, Enum) else int(value))
    assert chosen.variables() == {option.metadata["variable"]: text}
    assert chosen.arguments() == []


@pytest.mark.parametrize("name", SERVERS)
def test_no_two_flags_share_a_spelling_and_each_looks_like_one(name: str):
    flags = FLAGS[name]
    words = [word for option in spelled(flags) for word in first_words(option.metadata["spelling"])]
    variables = [option.metadata["variable"] for option in variable_flags(flags)]
    assert len({*words, *variables}) == len(words) + len(variables)
    assert all(word.startswith("--") for word in words)
    assert all(variable.startswith(f"{name.upper()}_") for variable in variables)
    assert not {option.name for option in spelled(flags)} & {option.name for option in variable_flags(flags)}


def first_words(spelling: Any) -> list[str]:
    if isinstance(spelling, str):
        return [spelling]
    return list(spelling.values()) if isinstance(spelling, Mapping) else [spelling[0]]


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_a_switch_can_only_be_switched_on(flags: type[ServerFlags]):
    """The words of a switch stand for true: one with another default, or with None, would be given for false too."""
    kinds = get_type_hints(flags)
    for option in spelled(flags):
        if bool in (kinds[option.name], *get_args(kinds[option.name])):
            assert (kinds[option.name], option.default) == (bool, False), option.name


def test_an_enum_can_have_an_argument_for_each_member():
    assert SglangFlags(shared_experts_fusion=FusedShared.off).arguments() == ["--disable-shared-experts-fusion"]
    assert SglangFlags(shared_experts_fusion=FusedShared.enforced).arguments() == ["--enforce-shared-experts-fusion"]


def test_a_switch_is_a_word_or_several():
    assert SglangFlags(enable_two_batch_overlap=True).arguments() == ["--enable-two-batch-overlap"]
    assert SglangFlags(disable_cuda_graph=True).arguments() == list(WITHOUT_GRAPHS)
    assert VllmFlags(disable_cuda_graph=True).arguments() == ["--enforce-eager"]


def test_values_follow_their_arguments_in_the_order_of_the_fields():
    flags = SglangFlags(max_running_requests=64, moe_runner_backend=MoeRunner.triton, chunked_prefill_size=4096)
    assert flags.arguments() == [
        *("--moe-runner-backend", "triton"),
        *("--chunked-prefill-size", "4096"),
        *("--max-running-requests", "64"),
    ]
    assert VllmFlags(moe_runner_backend=MoeBackend.deep_gemm, ep_num_redundant_experts=8).arguments() == [
        *("--moe-backend", "deep_gemm"),
        *("--eplb-config.num_redundant_experts", "8"),
    ]


@pytest.mark.parametrize(
    ("flags", "variables"),
    [
        (SglangFlags(use_deepgemm_bmm=True), ["SGLANG_USE_DEEPGEMM_BMM=1"]),
        (SglangFlags(use_deepgemm_bmm=False), ["SGLANG_USE_DEEPGEMM_BMM=0"]),
        (SglangFlags(use_deepgemm_bmm=None), []),
        (
            SglangFlags(fast_warmup=True, fp8_wo_a=False),
            ["SGLANG_JIT_DEEPGEMM_FAST_WARMUP=1", "SGLANG_OPT_FP8_WO_A_GEMM=0"],
        ),
        (VllmFlags(warmup=Warmup.skip), ["VLLM_DEEP_GEMM_WARMUP=skip"]),
        (
            VllmFlags(use_deep_gemm=False, moe_use_deep_gemm=True),
            ["VLLM_USE_DEEP_GEMM=0", "VLLM_MOE_USE_DEEP_GEMM=1"],
        ),
    ],
)
def test_a_variable_tells_false_from_what_is_not_set(flags: ServerFlags, variables: list[str]):
    assert [f"{name}={value}" for name, value in flags.variables().items()] == variables


def test_sglang_drafts_one_step_less_than_a_request_has_tokens():
    def words(steps: int) -> list[str]:
        return [
            *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", str(steps)),
            *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(steps + 1)),
        ]

    assert SglangFlags(mtp=True, tokens_per_request=4).arguments() == words(3)
    assert SglangFlags(mtp=True).arguments() == words(1)
    assert SglangFlags(tokens_per_request=4).arguments() == []


@dataclass(kw_only=True)
class OtherFlags(ServerFlags):
    """A server of the tests."""

    name: str = "other"
    color: MoeRunner = flag(MoeRunner.auto, "--color")
    size: int | None = flag(None, variable="OTHER_SIZE")
    of_the_recipe: int = flag(0)


def test_a_new_server_declares_its_flags_and_has_arguments():
    flags = OtherFlags(color=MoeRunner.marlin, size=0, of_the_recipe=1, start_limit_s=7)
    assert flags.arguments() == ["--color", "marlin"]
    assert flags.variables() == {"OTHER_SIZE": "0"}


@pytest.mark.parametrize(
    ("value", "text"), [(True, "1"), (False, "0"), (7, "7"), (MoeRunner.triton, "triton"), ("a b", "a b")]
)
def test_a_value_as_text(value: Any, text: str):
    assert as_text(value) == text


@pytest.mark.parametrize(
    ("flags", "errors"),
    [
        (SglangFlags(), []),
        (SglangFlags(version="0.5.23.post1"), []),
        (SglangFlags(version="latest"), ["server.version 'latest' is not a version; write it as 0.5.23"]),
        (SglangFlags(start_limit_s=0), ["server.start_limit_s must be at least 1, got 0"]),
        (SglangFlags(tokens_per_request=0), ["server.tokens_per_request must be at least 1, got 0"]),
        (SglangFlags(ep_num_redundant_experts=-1), ["server.ep_num_redundant_experts must be at least 0, got -1"]),
        (VllmFlags(max_num_batched_tokens=0), ["server.max_num_batched_tokens must be at least 1, got 0"]),
    ],
)
def test_a_value_below_the_least_is_named(flags: ServerFlags, errors: list[str]):
    assert flags.config_errors() == errors


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_bounds_are_of_flags_that_exist(flags: type[ServerFlags]):
    assert {*flags.at_least_one, *flags.at_least_zero} <= {option.name for option in fields(flags)}


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.5.23", (0, 5, 23)),
        ("0.21.1rc1.dev339+gabc", (0, 21, 1)),
        ("0.5", (0, 5, 0)),
        ("0.5.23.post1", (0, 5, 23)),
        ("5", None),
        ("latest", None),
    ],
)
def test_a_release_of_a_version(version: str, numbers: tuple[int, int, int] | None):
    assert release(version) == numbers
