"""Places: gpuloader takes Paddle's own wherever it takes one of its own."""

import numpy as np

from gpuloader import DataFeeder, DataLoader, data, fluid
from tests.sample_sets import values

ONES = np.ones((2, 1), "float32")


def test_a_place_of_the_library_and_that_of_a_tensor(lib):
    feeds = [data("x", [None, 1])]
    loader = DataLoader.from_generator(feeds, capacity=2)
    for places in (lib.cpu, [lib.cpu], (lib.cpu, lib.cpu)):
        loader.set_batch_generator(lambda: iter([[ONES]] * 4), places=places)
        steps = [len(step) for step in loader]
        assert steps == ([2, 2] if isinstance(places, tuple) else [1] * 4)
    assert values(DataLoader([1, 2, 3], places=lib.cpu, batch_size=2)) == [[1, 2], [3]]
    assert DataFeeder(feeds, lib.cpu).feed([(1,), (2,)])["x"].tolist() == [[1], [2]]
    with fluid.dygraph.guard(lib.cpu):
        assert fluid.dygraph.to_variable(ONES).tolist() == ONES.tolist()
    place = getattr(lib.tensor(ONES), "place", lib.cpu)
    [batch] = DataLoader([ONES], places=place)
    assert batch.shape == (1, 2, 1)
