"""One rank without its peers: collectives succeed and change nothing, and what peers would send is made up.

torch.distributed's fake backend serves every group. NCCL itself is answered by the virtual GPU (nccl.c).
"""

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


def install():
    """Replace the ways in which a process meets others; before the server is imported."""
    make_world = dist.init_process_group
    make_group = dist.new_group

    def init_process_group(backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, **_):
        return make_world(backend="fake", store=FakeStore(), world_size=world_size, rank=rank)

    def new_group(ranks=None, timeout=None, backend=None, pg_options=None, **options):
        options.pop("use_local_synchronization", None)
        return make_group(ranks, backend="fake", **options)

    for module in (dist, dist.distributed_c10d):
        module.init_process_group = init_process_group
        module.new_group = new_group
        module.monitored_barrier = lambda *_, **__: None
        module.broadcast_object_list = lambda *_, **__: None
        module.all_gather_object = all_gather_object


def all_gather_object(gathered, mine, group=None):
    """Every peer has what this rank has."""
    gathered[:] = [mine] * len(gathered)


def install_in_sglang():
    """The same for SGLang's own exchange of Python objects; after its utilities are imported and before the rest."""
    from sglang.srt import utils
    from sglang.srt.utils import common

    for module in (utils, common):
        # Whoever is waited for says what this rank would have said; a message to the next stage arrives nowhere.
        module.broadcast_pyobj = lambda mine, *_, **__: mine
        module.point_to_point_pyobj = lambda mine, *_, async_send=False, **__: [] if async_send else mine


def play_neighbours(scheduler, hidden_size, dtype):
    """Between pipeline stages: hidden states come from the stage before, chosen tokens from the last one."""

    def received(expected_kind="default", all_gather_group=None):
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

    scheduler._pp_recv_typed_dict = received
    scheduler._pp_send_dict_to_next_stage = lambda *_, **__: []
