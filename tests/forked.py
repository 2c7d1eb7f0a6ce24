"""Processes that start at once: forked from a server that has loaded what they need, and has never used it."""

from torch import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")
# One list for all tests, since there is one server. torch loads the second one, and most of a second's worth with it,
# when an optimizer is first made, and the last ones where a model is sharded.
CONTEXT.set_forkserver_preload(
    ["anchorhold_lab.experiments", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint"]
)
