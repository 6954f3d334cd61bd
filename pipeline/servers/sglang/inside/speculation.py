"""Draft tokens are verified by kernels that do nothing here, so every request accepts exactly one token."""

import torch


def install():
    """Replace eagle_sample in every module that imported it by name; call it after the scheduler is imported."""
    from sglang.srt.speculative import eagle_utils, eagle_worker_common, ngram_worker

    sample = eagle_utils.eagle_sample

    def accept_one_token(*arguments, **options):
        predicted, accepted, index = sample(*arguments, **options)
        return predicted, torch.ones(accepted.shape, dtype=accepted.dtype).to(accepted.device), index

    for module in (eagle_utils, eagle_worker_common, ngram_worker):
        module.eagle_sample = accept_one_token
