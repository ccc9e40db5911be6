"""The Try tab: a run's newest checkpoint is asked beside its base model, and hands its weights over."""
