"""One file per family of trainers: its keys and what they mean, and nothing that is computed."""
