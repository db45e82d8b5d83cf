from tests.process.conftest import start

__all__ = ["start"]
