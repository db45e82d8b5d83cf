"""AstraFlow: asynchronous reinforcement learning of language models with verifiable rewards."""

__all__ = ["__version__"]

__version__ = "0.1.0"
