# The peers of benchmarks/ranks.cpp: the same model on several ranks by DistributedDataParallel, with AdamW ("steps") or with the optimizer's
# state in shards by ZeroRedundancyOptimizer ("shares"). Each word on the standard input is so many updates, and rank 0 prints the
# milliseconds of one.
import sys
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer

import char_gpt

STEPS = 4

char_gpt.begin(1)
dist.init_process_group("gloo")


def make_model():
    return nn.parallel.DistributedDataParallel(char_gpt.make_model())


def shard_adamw(parameters, **options):
    return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.AdamW, **options)


trainings = {"steps": char_gpt.Training(make_model()), "shares": char_gpt.Training(make_model(), shard_adamw)}
for line in sys.stdin:
    training = trainings.get(line.strip())
    if training is None:
        break
    start = time.perf_counter()
    training.run(STEPS)
    if dist.get_rank() == 0:
        print((time.perf_counter() - start) * 1e3 / STEPS, flush=True)
