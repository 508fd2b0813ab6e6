"""The version, stated once more than in pyproject.toml; a test holds them equal."""

VERSION = "0.1.0"
