"""The names of ``paddle.fluid.reader`` that old loading code uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpuloader.api.generator_loader import GeneratorLoader
from gpuloader.api.loader import DataLoader
from gpuloader.fields.spec import FeedSpec

__all__ = ["DataLoader", "PyReader"]


class PyReader(GeneratorLoader):
    """`DataLoader.from_generator` under its older name; its setters keep their older names, too.

    >>> reader = PyReader(capacity=2, return_list=True)
    >>> reader.decorate_sample_list_generator(lambda: [[(1,), (2,)]], places="cpu")
    >>> [numbers.tolist() for numbers, in reader]
    [[1, 2]]
    """

    def __init__(
        self,
        feed_list: Sequence[FeedSpec | str] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool | str = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        super().__init__(feed_list, capacity, use_double_buffer, iterable, return_list)

    def decorate_sample_generator(
        self, sample_generator: Callable[[], Any], batch_size: int, drop_last: bool = True, places: Any = None
    ) -> None:
        """Older name of `set_sample_generator`; returns None."""
        self.set_sample_generator(sample_generator, batch_size, drop_last, places)

    def decorate_sample_list_generator(self, reader: Callable[[], Any], places: Any = None) -> None:
        """Older name of `set_sample_list_generator`; returns None."""
        self.set_sample_list_generator(reader, places)

    def decorate_batch_generator(self, reader: Callable[[], Any], places: Any = None) -> None:
        """Older name of `set_batch_generator`; returns None."""
        self.set_batch_generator(reader, places)
