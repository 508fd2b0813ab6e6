"""Talk to the model that a run has trained."""
