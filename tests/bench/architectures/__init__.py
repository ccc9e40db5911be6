"""Every architecture of the libraries, at a tiny size: `python -m tests.bench.architectures [NAME …]`.

Each causal language model that the installed transformers knows, and every seventh model of timm, is made
with random weights, certified (8 samples, N of 2 and 4) and trained for two windows, in a process of its
own. A language model's first loss is held against the plain model's, text by text without padding. The
table goes to standard error as it grows; the last line is one JSON object:

architectures    how many were tried
equal            certified as the large batch's gradient, trained
per_micro_batch  certified as the stated definition of each micro-batch, with its reason
refused          with a sentence
not_made         the library itself makes no small model of it, with its error
wrong            {name: what} that crashed, gave no sentence, or trained something else without a word
"""
