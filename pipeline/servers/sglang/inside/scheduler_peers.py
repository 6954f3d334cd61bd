"""SGLang's scheduler without its peers: what other ranks would send is made up here."""

import torch


def install():
    """Replace SGLang's exchange of Python objects; call it before any module that imports these functions by name."""
    from sglang.srt import utils
    from sglang.srt.utils import common

    for module in (utils, common):
        # What a peer would send is this rank's own object; what is sent to the next pipeline rank is dropped.
        module.broadcast_pyobj = lambda mine, *_, **__: mine
        module.point_to_point_pyobj = lambda mine, *_, async_send=False, **__: [] if async_send else mine


def play_neighbours(scheduler, hidden_size, dtype):
    """Make up what other pipeline ranks send: hidden states from the one before, chosen tokens from the last one."""

    def receive(expected_kind="default", all_gather_group=None):
        batch = scheduler.cur_batch_for_debug
        if expected_kind == "proxy":
            rows = batch.extend_num_tokens if batch.forward_mode.is_extend() else len(batch.reqs)
            shape = (rows or 0, hidden_size)
            tensors = {
                name: torch.empty(shape, dtype=dtype, device=scheduler.device) for name in ("hidden_states", "residual")
            }
        else:
            waiting = next(micro_batch for micro_batch in scheduler.mbs if micro_batch is not None)
            tensors = {"next_token_ids": torch.zeros(len(waiting.reqs), dtype=torch.int64, device=scheduler.device)}
        return tensors, scheduler._pp_record_comm_event()

    scheduler._pp_recv_typed_dict = receive
    scheduler._pp_send_dict_to_next_stage = lambda *_, **__: []
