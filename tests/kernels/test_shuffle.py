import numpy as np
import pytest
from hypothesis import given

from gpuloader.kernels.shuffle import shuffle
from gpuloader.order.order import Shuffled
from tests.kernels.cases import permutations
from tests.kernels.shim import Placed, examples, read


@given(part=permutations())
@examples(200)
def test_the_twin_is_the_order(part):
    count, seed, epoch, start, stop = part.values()
    expected = Shuffled(count, seed, epoch).slice(start, stop)
    np.testing.assert_array_equal(shuffle.on_host(**part), expected)


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
