"""What a micro-batch costs here and under trainers that people know: `python -m tests.bench.tasks`.

For causal-lm, segmentation and image-classification, each once with small micro-batches ("small") and
once with micro-batches of 50 ms and more ("50ms"): the product's own loop (recipe, task, engine, journal and
readings as in any run), HF Trainer (causal-lm), Lightning, accelerate, and a loop written by hand, twice.
All have the same first weights, the same files read and collated by the same code in the same order,
N = 8, fp32 on one CPU thread, fused AdamW, clipping at 1. Nothing is evaluated, saved, logged to a
console or augmented.

Each trainer has a process of its own, as users have it, and trains only in its turn of 0.15 s or one
window: the machine's speed changes within a second, and longer turns measure that. The product's journal
is written in the product's turns only, as often as in any run. A round is some turns of each, always in
random order; for small micro-batches 16 windows, so that the one window in 16 in which the product measures
every micro-batch's gradient norm is in each. Differences and ratios are taken round by round, over raw
against the mean of both loops. Two processes of the same loop still differ by some percent for all their
life, so each case is measured in many sets of fresh ones (`…_by_set`), forked from one that has imported
what all of them need and started in random order. What is printed is the median, beside it (`…_interval`)
its 95 % interval (bootstrap over sets and the rounds in them).

    KIND_us_saved_per_micro_batch_over_TRAINER   microseconds, small case
    KIND_ratio_over_TRAINER_50ms                 time under the product over time under the other
    KIND_ratio_over_raw                          the same over the loop written by hand, 50-ms case
    KIND_small_ratio_over_raw                    small case
    KIND_peak_memory_ratio_over_raw              peak resident memory of those processes, 50-ms case
    KIND_SIZE_aa_ratio, aa_ratio                 one loop written by hand over the other; the furthest from 1
    KIND_SIZE_micro_batch_ms                     what a micro-batch takes in the loop written by hand
    KIND_SIZE_disagreement                       how far apart the trainers' weights are after three windows,
                                                 over how far they have come: that all do the same work
"""
