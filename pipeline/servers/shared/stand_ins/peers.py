"""One rank without its peers: collectives succeed and change nothing; an object from a peer is this rank's own.

Every group has torch.distributed's fake backend. Calls of NCCL itself are answered by the virtual GPU (nccl.c).
"""

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


def install():
    """Replace what connects a process to others; call it before the server is imported."""
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
    """Every peer contributes this rank's object."""
    gathered[:] = [mine] * len(gathered)
