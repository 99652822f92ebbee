"""The suites: what PyTorch's distributed package is tested with, each on a base class that ships inside torch."""

SUITES = ("distributed", "threads")
