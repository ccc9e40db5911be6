"""What a micro-batch costs here and under trainers that people know: `python -m tests.bench.tasks`.

For causal-lm, segmentation and image-classification, each once with small micro-batches ("small") and
once with micro-batches of about 50 ms ("50ms"): the product's own loop (recipe, task, engine, journal and
readings as in any run), HF Trainer (causal-lm), Lightning, accelerate, and a loop written by hand, twice.
All have the same first weights, the same files read and collated by the same code in the same order,
N = 8, fp32 on one CPU thread, fused AdamW, clipping at 1. Nothing is evaluated, saved, logged to a
console or augmented.

Each trainer lives as long as the comparison does, in a thread that runs only in its turn. A round gives
each one turn, in random order; a turn is some windows that are not timed, and then the timed ones.
Differences and ratios are taken round by round; what is printed is their median, beside it (`…_interval`)
a 95 % bootstrap interval of it. Small cases time 16 windows a turn, so that each turn has the one window
in 16 in which the product measures every micro-batch's gradient norm.

    KIND_us_saved_per_micro_batch_over_TRAINER   microseconds, small case
    KIND_ratio_over_TRAINER_50ms                 time under the product over time under the other
    KIND_ratio_over_raw                          the same over the loop written by hand, 50-ms case
    KIND_small_ratio_over_raw                    small case
    KIND_peak_memory_ratio_over_raw              peak resident memory, each in a fresh process
    KIND_SIZE_aa_ratio, aa_ratio                 one loop written by hand over the other; the furthest from 1
    KIND_SIZE_micro_batch_ms                     what a micro-batch takes in the loop written by hand
    KIND_SIZE_disagreement                       how far apart the trainers' weights are after three windows,
                                                 over how far they have come: that all do the same work
"""
