import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels.shuffle import shuffle, shuffle_on_host
from gpuloader.order.order import Shuffled
from tests.kernels.shim import Placed, examples, read

seeds = st.integers(0, 2**64 - 1)
shapes = st.tuples(st.integers(1, 5), st.just(1)), st.tuples(st.integers(1, 70))


@st.composite
def parts(draw):
    """Draw a short or a long count, and a part of its permutation."""
    count = draw(st.integers(0, 300) | st.integers(2**18 + 1, 2**62) | st.sampled_from([2**18 + 1, 2**62]))
    start = draw(st.integers(0, count) | st.just(0))
    return count, start, draw(st.integers(start, min(count, start + 300)) | st.just(min(count, start + 300)))


@given(part=parts(), seed=seeds, epoch=seeds, shape=st.none() | st.tuples(*shapes), given_out=st.booleans())
@examples(200)
def test_launcher_twin_and_order_agree(device, part, seed, epoch, shape, given_out):
    count, start, stop = part
    device.shape = shape
    out = Placed(np.zeros(stop - start, np.int64))
    result = shuffle(count, seed, epoch, start, stop, out=out.array if given_out else None)
    expected = Shuffled(count, seed, epoch).slice(start, stop)
    np.testing.assert_array_equal(read(result), expected)
    np.testing.assert_array_equal(shuffle_on_host(count, seed, epoch, start, stop), expected)
    assert (result is out.array) == given_out
    out.check()


@pytest.mark.parametrize("count", [2**18 - 1, 2**18, 2**18 + 1])
def test_both_ways_meet_where_the_order_turns(device, count):
    device.shape = None
    result = read(shuffle(count, 5, 2))
    np.testing.assert_array_equal(result, Shuffled(count, 5, 2).slice(0, count))
    ways = {entry for entry, *_ in device.launches[-2:]}
    assert ("permute_positions" in ways) == (count > 2**18)


def test_a_whole_permutation_is_sorted_in_its_result(device):
    device.shape = None
    allocated = []
    allocate, device.allocate = device.allocate, None
    try:
        import cupy

        with cupy.cuda.using_allocator(lambda nbytes: allocated.append(nbytes) or allocate(nbytes)):
            out = Placed(np.zeros(100, np.int64))
            shuffle(100, 1, 1, out=out.array)
            assert not allocated
            shuffle(100, 1, 1, 10, 20, out=Placed(np.zeros(10, np.int64)).array)
            assert allocated == [800]
    finally:
        device.allocate = allocate


@pytest.mark.parametrize(
    ("arguments", "error", "problem"),
    [
        ((-1, 0, 0), ValueError, "count must be from 0 to 4611686018427387904, got -1"),
        ((5.0, 0, 0), TypeError, "count must be an integer, got float"),
        ((5, 2**64, 0), ValueError, "seed must be from 0 to 18446744073709551615"),
        ((5, 0, -1), ValueError, "epoch must be from 0"),
        ((5, 0, 0, 0, 6), ValueError, "stop must be from 0 to 5, got 6"),
        ((5, 0, 0, 3, 2), ValueError, "start must be from 0 to 2, got 3"),
    ],
)
def test_launcher_and_twin_refuse_alike(device, arguments, error, problem):
    for function in (shuffle, shuffle_on_host):
        with pytest.raises(error, match=problem):
            function(*arguments)
