"""The equivalence certificate: N micro-batches against one large batch, for this model, loss and data.

`report`, `words` and `html` are light (no torch): the window reads them. `certificate.certify` makes
a report, and takes the engine as an argument; `command.main` is `python -m trainer_backend verify`.
"""
