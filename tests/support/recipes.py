"""A recipe with comments of its own, which editing must keep."""

RECIPE = """# kept: a line of its own
[run]
max_optimizer_steps = 2_000   # kept: at a line's end

[task]
kind = "language-model"

[accumulation]
micro_batch_size = 8
gradient_accumulation_steps = 4   # N

[optimizer]
learning_rate = 3e-4
"""
