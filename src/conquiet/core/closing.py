"""The ``with`` block of objects that hold connections."""

from abc import ABC, abstractmethod
from typing import Self


class ClosedAfterUse(ABC):
    """A ``with`` block closes the object at its end."""

    @abstractmethod
    def close(self) -> None:
        """Release what the object holds. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
