"""The version of commlib, which pyproject.toml repeats."""

__version__ = "0.2.0"
