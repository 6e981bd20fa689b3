"""Every declared kernel against its twin, and everything that follows from its declaration."""

import inspect
import itertools
import pickle
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.kernels.compiler import kernel_names
from gpuloader.kernels.launching import Kernel
from gpuloader.kernels.recolor import recolor
from gpuloader.kernels.resample import resample
from tests.kernels.cases import CASES, check_agreement
from tests.kernels.shim import check_refusal, examples, place, read


def named(case):
    return case.kernel.__name__


def on_device(arguments):
    return {name: place(one) if isinstance(one, np.ndarray) else one for name, one in arguments.items()}


def first_array(case):
    return next(iter(case.kernel.arrays))


@pytest.mark.parametrize("case", CASES, ids=named)
class TestEveryKernel:
    def test_the_launcher_and_its_twin_agree(self, device, case):
        """For any arguments, at any addresses of theirs, and with any grid."""

        @given(
            arguments=case.problems,
            offsets=st.tuples(*[st.integers(0, 9)] * 4),
            shape=case.shapes,
            given_out=st.booleans(),
        )
        @examples(case.count)
        def agree(arguments, offsets, shape, given_out):
            device.shape = shape
            check_agreement(case, arguments, offsets, given_out)

        agree()

    def test_they_agree_at_any_offset(self, device, case):
        """Whatever the addresses of inputs and result have to do with each other."""
        device.shape = ((1, 1), (32,)) if case.kernel in (recolor, resample) else None  # their threads wait
        for start, out_start in itertools.product(range(9), repeat=2):
            check_agreement(case, case.example, [start] * 3 + [out_start], given_out=True)

    def test_it_looks_like_the_function_that_declares_it(self, case):
        kernel = case.kernel
        assert {*kernel.arrays, "stream"} <= set(inspect.signature(kernel).parameters)
        assert ">>> " in inspect.getdoc(kernel)
        assert pickle.loads(pickle.dumps(kernel)) is kernel
        assert pickle.loads(pickle.dumps(kernel.on_host)) == kernel.on_host

    def test_the_stream_is_the_one_that_was_given(self, device, case):
        device.shape, stream = None, object()
        device.launches.clear()
        case.kernel(**on_device(case.example), stream=stream)
        assert device.launches
        assert all(launch[-1] is stream for launch in device.launches)

    def test_a_missing_argument_is_named(self, case):
        name = next(iter(case.example))
        rest = {other: one for other, one in case.example.items() if other != name}
        with pytest.raises(TypeError, match=f"missing 1 required positional argument: '{name}'"):
            case.kernel.on_host(**rest)


@pytest.mark.parametrize("case", [case for case in CASES if case.kernel.arrays], ids=named)
class TestArrays:
    def test_those_of_another_library_are_refused(self, device, case):
        with pytest.raises(TypeError, match=r"must be a cupy.ndarray, got numpy.ndarray"):
            case.kernel(**case.example)
        with pytest.raises(TypeError, match=r"must be a numpy.ndarray, got cupy.ndarray"):
            case.kernel.on_host(**on_device(case.example))

    def test_those_in_pieces_are_refused(self, device, case):
        name = first_array(case)
        pieces = np.repeat(case.example[name][..., None], 2, axis=-1)
        with pytest.raises(ValueError, match=r"contiguous, .*; pass numpy.ascontiguousarray\("):
            case.kernel.on_host(**case.example | {name: pieces[..., 0]})
        with pytest.raises(ValueError, match=r"contiguous, .*; pass cupy.ascontiguousarray\("):
            case.kernel(**on_device(case.example) | {name: place(pieces)[..., 0]})


@pytest.mark.parametrize("case", [case for case in CASES if case.has_out], ids=named)
class TestOut:
    def test_it_is_written_to_and_returned_and_nothing_is_allocated(self, device, case):
        import cupy

        expected = case.kernel.on_host(**case.example)
        on_host, there = np.ones_like(expected), place(np.ones_like(expected))
        assert case.kernel.on_host(**case.example, out=on_host) is on_host
        assert on_host.tobytes() == expected.tobytes()
        arguments = on_device(case.example)

        def allocate(nbytes):
            raise AssertionError("memory was allocated")

        device.shape = None
        with cupy.cuda.using_allocator(allocate):
            assert case.kernel(**arguments, out=there) is there
        assert read(there).tobytes() == expected.tobytes()

    def test_another_one_is_refused(self, device, case):
        expected = case.kernel.on_host(**case.example)
        for out, error, problem in (
            (np.ones((1, *expected.shape), expected.dtype), ValueError, "out must have shape"),
            (np.ones(expected.shape, np.complex64), TypeError, "out must have dtype .*, got complex64"),
            (expected.tolist(), TypeError, "out must be a .*ndarray, got builtins.list"),
        ):
            check_refusal(case.kernel, case.kernel.on_host, case.example | {"out": out}, error, problem)

    def test_one_in_pieces_or_read_only_is_refused(self, device, case):
        expected = case.kernel.on_host(**case.example)
        wide = np.ones((*expected.shape, 2), expected.dtype)
        with pytest.raises(ValueError, match=r"out must be contiguous, got .* with strides"):
            case.kernel.on_host(**case.example, out=wide[..., 0])
        with pytest.raises(ValueError, match=r"out must be contiguous, got .* with strides"):
            case.kernel(**on_device(case.example), out=place(wide)[..., 0])
        frozen = np.ones_like(expected)
        frozen.flags.writeable = False
        with pytest.raises(ValueError, match="out must be writable"):
            case.kernel.on_host(**case.example, out=frozen)


REFUSED = [(case, *refused) for case in CASES for refused in case.refused]


@pytest.mark.parametrize(
    ("case", "change", "error", "problem"),
    REFUSED,
    ids=[f"{named(one)}-{problem}" for one, _, _, problem in REFUSED],
)
def test_launcher_and_twin_refuse_alike(device, case, change, error, problem):
    check_refusal(case.kernel, case.kernel.on_host, case.example | change, error, problem)


def test_every_declared_kernel_has_a_case():
    modules = [import_module(f"gpuloader.kernels.{name}") for name in kernel_names()]
    declared = {one for module in modules for one in vars(module).values() if isinstance(one, Kernel)}
    assert declared == {case.kernel for case in CASES}
