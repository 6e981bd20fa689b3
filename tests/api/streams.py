"""An iterable dataset of any items."""

from gpuloader import IterableDataset


class Items(IterableDataset):
    """The items of the iterable that a function returns, which is asked for one in each pass."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return iter(self.make())
