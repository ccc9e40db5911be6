"""The trainer process: an attempt's life, its loop, its checkpoints, and how it is steered.

    __main__ ─ attempt (lock, journal, inbox) ─ assembly (task, model, engine, data) ─ loop

Of these only `assembly`, `loop`, `saving`, `checkpoint`, `evaluation` and `randomness` import torch;
the journal's thread and the inbox live before it is imported.
"""
