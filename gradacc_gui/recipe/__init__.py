"""A recipe as a person edits it: texts, faults, amounts, arrangement. Data only; no Qt."""
