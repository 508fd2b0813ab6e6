"""The version, stated once more than in pyproject.toml; a test holds them equal."""

__version__ = "0.1.0"
