"""Writes how DeepSpeed completes train_batch_size, train_micro_batch_size_per_gpu and gradient_accumulation_steps.

Needs: pip install deepspeed==0.19.8 torch==2.13.0
Usage: DS_ACCELERATOR=cpu python bench/golden/make_batch_triple.py > crates/cli/tests/golden/batch_triple.txt

One line a case: train batch, micro batch, accumulation (- where unset), ranks, then the completed three, or `error`.
"""

from itertools import product

from deepspeed.runtime.config import DeepSpeedConfig

print("# deepspeed 0.19.8; written by bench/golden/make_batch_triple.py")
for total, micro, steps, ranks in product([None, 7, 8, 12, 16], [None, 1, 2, 4], [None, 1, 2, 3], [1, 2, 4]):
    config = object.__new__(DeepSpeedConfig)
    config.world_size = ranks
    config.train_batch_size = total
    config.train_micro_batch_size_per_gpu = micro
    config.gradient_accumulation_steps = steps
    try:
        config._configure_train_batch_size()
        three = config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps
        outcome = " ".join(map(str, three))
    except AssertionError:
        outcome = "error"
    print(*("-" if x is None else x for x in (total, micro, steps)), ranks, outcome)
