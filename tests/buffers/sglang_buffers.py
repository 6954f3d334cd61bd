"""Runs in SGLang's own Python: builds its real decode buffers on the CPU, adopts them, and prints what came of it.

    python -m tests.buffers.sglang_buffers CASES

CASES: a JSON list, one object for each Case; one answer for each goes to standard output, as a JSON list.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.buffers.adapters import adopt
from pipeline.buffers.decode_set import SEQ_LEN_FILL, AdapterKind, DecodeField, DecodeSize
from pipeline.engine.errors import SlotError

SEQ_LENS = (DecodeField.SEQ_LENS, DecodeField.SEQ_LENS_CPU)


@dataclass(frozen=True)
class Case:
    """One set of the server's buffers, twice as large as `size` asks, and the batch that is viewed."""

    made_by: str
    """Which of the server's runners: a key of MAKERS."""
    flags: dict[str, Any]
    """The server's own arguments; its buffers follow from them too."""
    size: DecodeSize
    batch: int

    @classmethod
    def from_json(cls, case: dict[str, Any]) -> Case:
        size = DecodeSize(**case["size"] | {"kind": AdapterKind[case["size"]["kind"]]})
        return cls(case["made_by"], case["flags"], size, case["batch"])

    @property
    def common(self) -> dict[str, Any]:
        """The arguments that both makers take."""
        size = self.size
        return {
            "device": torch.device("cpu"),
            "max_bs": 2 * size.max_batch,
            "max_num_token": 2 * size.max_tokens,
            "hidden_size": size.hidden,
            "dtype": torch.bfloat16,
            "is_encoder_decoder": False,
            "require_mlp_tp_gather": size.num_dp_ranks > 1,
            "seq_len_fill_value": SEQ_LEN_FILL,
            "encoder_len_fill_value": 0,
            "num_tokens_per_req": size.tokens_per_request,
            "cache_loc_dtype": torch.int64,
            "enable_mamba_track": False,
            "hc_hidden_size": size.streams * size.hidden if size.streams > 1 else None,
        }


def by_graph_runner(case: Case) -> Any:
    """What DecodeCudaGraphRunner.__init__ makes."""
    # sglang is in the server's Python only.
    from sglang.srt.model_executor.runner_utils.buffers import (  # pyright: ignore[reportMissingImports]
        DecodeInputBuffers,
    )

    return DecodeInputBuffers.create(
        **case.common,
        next_token_logits_buffer=torch.zeros(2 * case.size.max_tokens, case.size.vocab, dtype=torch.float32),
        num_dp_ranks=case.size.num_dp_ranks,
        pp_size=case.flags.get("pp_size", 1),
    )


def by_base_runner(case: Case) -> Any:
    """What BaseRunner._alloc_dummy_decode_buffers makes; it reads the widths from the published configuration."""
    # sglang is in the server's Python only.
    from sglang.srt.model_executor.runner.base_runner import (  # pyright: ignore[reportMissingImports]
        _allocate_decode_buffers,
    )

    return _allocate_decode_buffers(**case.common, vocab_size=case.size.vocab)


MAKERS = {"graph runner": by_graph_runner, "base runner": by_base_runner}


def server_tensor(owner: Any, name: str) -> torch.Tensor:
    """The server's own tensor behind a field's name."""
    attribute, _, key = name.partition(".")
    value = getattr(owner, attribute)
    return value[key] if key else value


def adopted(case: Case, owner: Any) -> dict[str, Any]:
    """Every field of a view: its shape and type, and whether its memory is the server's own."""
    for name in SEQ_LENS:
        server_tensor(owner, name).zero_()
    try:
        view = adopt(case.size, owner).view(case.batch)
    except SlotError as error:
        return {"error": str(error)}
    owned = {name: server_tensor(owner, name) for name in view}
    return {
        "shapes": {name: list(tensor.shape) for name, tensor in view.items()},
        "dtypes": {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in view.items()},
        "copied": [name for name, tensor in view.items() if tensor.data_ptr() != owned[name].data_ptr()],
        "seq_lens": {name: owned[name][: case.batch].tolist() for name in SEQ_LENS},
    }


def main(cases: list[Case]) -> None:
    # sglang is in the server's Python only.
    from sglang.srt.runtime_context import get_context  # pyright: ignore[reportMissingImports]

    answers: list[dict[str, Any]] = []
    for case in cases:
        with get_context().override_server_args(**case.flags):
            owner = MAKERS[case.made_by](case)
        answers.append({"class": type(owner).__name__} | adopted(case, owner))
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main([Case.from_json(case) for case in json.loads(sys.argv[1])])
