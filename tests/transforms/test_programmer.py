import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.order.order import InOrder, Shuffled, Stretch
from gpuloader.transforms import program as draws
from gpuloader.transforms.program import draw_ahead, draw_words


@given(
    count=st.integers(1, 60),
    size=st.integers(1, 9),
    jumps=st.lists(st.integers(0, 7), max_size=12),
    pad=st.booleans(),
    widths=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    ahead=st.integers(1, 40),
    is_shuffled=st.booleans(),
)
def test_words_drawn_ahead_are_those_of_each_batch(count, size, jumps, pad, widths, ahead, is_shuffled):
    """Batches may follow one another, be left out, or come again; the last may repeat its last sample."""
    order = Shuffled(count, seed=3, epoch=1) if is_shuffled else InOrder(count)
    purpose, drawn, first = (7, 2, tuple(widths)), None, 0
    before, draws._AHEAD = draws._AHEAD, ahead
    try:
        for jump in [1, *jumps]:
            last = min(first + size, count) - 1
            stretch = Stretch(order, first, last, size if pad else last - first + 1)
            if drawn is None or not drawn.has(purpose, stretch):
                drawn = draw_ahead(purpose, stretch, drawn)
            expected = draw_words(purpose, stretch.indices())
            for one, other in zip(drawn.take(stretch), expected, strict=True):
                np.testing.assert_array_equal(one, other)
            first = (first + jump * size) % count
    finally:
        draws._AHEAD = before


def test_batches_that_follow_one_another_are_drawn_together():
    order, purpose = InOrder(1000), (0, 0, (1,))
    first = draw_ahead(purpose, Stretch(order, 0, 9, 10), None)
    second = draw_ahead(purpose, Stretch(order, 10, 19, 10), first)
    assert (first.stop, second.first, second.stop) == (10, 10, 1000)
    assert second.has(purpose, Stretch(order, 500, 509, 10))


def test_words_belong_to_one_epoch_of_one_order():
    order = InOrder(10)
    stretch = Stretch(order, 0, 4, 5)
    drawn = draw_ahead((0, 0, (1,)), stretch, None)
    assert not drawn.has((0, 1, (1,)), stretch)
    assert not drawn.has((0, 0, (2,)), stretch)
    assert not drawn.has((0, 0, (1,)), Stretch(InOrder(10), 0, 4, 5))
