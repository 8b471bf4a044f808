# The peer of benchmarks/ranks.cpp: the same model on several ranks by DistributedDataParallel. Each word "steps" on the standard input is
# so many updates, and rank 0 prints the milliseconds of one.
import sys
import time

import torch.distributed as dist
import torch.nn as nn

import char_gpt

STEPS = 4

char_gpt.begin(1)
dist.init_process_group("gloo")
training = char_gpt.Training(nn.parallel.DistributedDataParallel(char_gpt.make_model()))
for line in sys.stdin:
    if line.strip() != "steps":
        break
    start = time.perf_counter()
    training.run(STEPS)
    if dist.get_rank() == 0:
        print((time.perf_counter() - start) * 1e3 / STEPS, flush=True)
