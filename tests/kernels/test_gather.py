import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels.gather import fuse_gathers, gather
from gpuloader.kernels.launching import KernelLaunch
from tests.kernels.cases import gathers
from tests.kernels.shim import Placed, examples, launch_shapes, place, read


@given(
    problem=gathers(),
    ends=st.tuples(*[st.integers(0, 19)] * 2),
    count=st.integers(0, 25),
    has_order=st.booleans(),
    shape=launch_shapes(2),
)
@examples(200)
def test_with_a_span_they_agree(device, problem, ends, count, has_order, shape):
    """Rows at consecutive positions of an order, or in sequence; the last is repeated to fill `out`."""
    source, indices = problem["source"], problem["indices"]
    device.shape = shape
    order = indices if has_order else None
    most = len(indices if has_order else source)
    if not most:
        return
    first, last = sorted(one % most for one in ends)
    positions = [min(first + number, last) for number in range(count)]
    expected = source[indices[positions] if has_order else positions]
    span = np.array([first, last])
    out = Placed(np.zeros_like(expected))
    on_host = np.zeros_like(expected)
    given = None if order is None else place(order)
    assert gather(place(source), given, span=place(span), out=out.array) is out.array
    assert gather.on_host(source, order, span=span, out=on_host) is on_host
    assert read(out.array).tobytes() == expected.tobytes() == on_host.tobytes()
    out.check()


def test_the_twin_is_what_numpy_takes():
    source = np.arange(60).reshape(5, 4, 3)
    indices = np.array([4, 0, 0, 2])
    out = np.empty((4, 4, 3), np.int64)
    assert gather.on_host(source, indices, out=out) is out
    np.testing.assert_array_equal(out, source[indices])


def test_the_twin_checks_what_the_device_cannot():
    with pytest.raises(IndexError, match="indices must be from 0 to 2, got -1 at 1"):
        gather.on_host(np.zeros(3), np.array([0, -1]))


@given(
    fields=st.lists(gathers(), min_size=1, max_size=11),
    picked=st.lists(st.integers(0, 99), max_size=20),
    ends=st.none() | st.tuples(*[st.integers(0, 19)] * 2),
    shape=launch_shapes(2),
)
@examples(60)
def test_several_arrays_in_one_launch(device, fields, picked, ends, shape):
    """The same rows as by a launch for each array, up to eight arrays at a time."""
    device.shape = shape
    most = min(len(field["source"]) for field in fields)
    indices = np.array([one % most for one in picked], np.int64)
    if ends is not None and len(indices):
        first, last = sorted(one % len(indices) for one in ends)
        span, rows = place(np.array([first, last])), indices[first : last + 1]
    else:
        span, rows = None, indices
    there, sources = place(indices), [field["source"] for field in fields]
    outs = [Placed(source[rows]) for source in sources]
    sources_there = [place(source) for source in sources]
    launches = [
        launch
        for source, out in zip(sources_there, outs, strict=True)
        for launch in gather.launches(source, there, span=span, out=out.array)
    ]
    fused = fuse_gathers(launches)
    assert len(fused) == -(-len(launches) // 8)
    for launch in fused:
        launch.load()(launch.grid, launch.block, launch.arguments, stream=None)
    for source, out in zip(sources, outs, strict=True):
        assert read(out.array).tobytes() == source[rows].tobytes()


def test_only_neighboring_gathers_by_the_same_rows_are_one_launch(device):
    source = place(np.arange(12.0).reshape(6, 2))
    first, second = place(np.array([1, 2])), place(np.array([3, 4]))
    launches = [gather.launches(source, indices)[0] for indices in (first, first, second, first, first)]
    launches.insert(4, KernelLaunch("cast", "cast", (1,), (1,), ()))
    assert [launch.entry for launch in fuse_gathers(launches)] == [
        "gather_fields",
        "gather<uint4>",
        "gather<uint4>",
        "cast",
        "gather<uint4>",
    ]
    assert fuse_gathers([]) == []
