"""Programs: planned once per layout, computed in room after the staged fields, and named in errors."""

import math
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader.errors import LoaderError, SampleError
from gpuloader.staging import ALIGNMENT, arrange
from gpuloader.transforms import Cast, CutMix, MixUp, Normalize, OneHot, Pad, RandomErasing
from gpuloader.transforms.program import Programmer
from tests.fakes import run_threads

NAMES = ["image", "label", "words"]
LEVELS = (0, 0, 1)


def staged(samples=4, steps=9):
    shapes = (samples, 5, 4, 3), (samples,), (steps, 2), (samples + 1,)
    return arrange(tuple(zip(shapes, map(np.dtype, ("u1", "i8", "f4", "i8")), strict=True)))


STEPS = [
    Normalize("image", crop=(3, 3), flip=True),
    OneHot("label", 7),
    Pad("words", 6),
    Cast("label", "uint8"),
    Cast(None, "float16"),
]


def arrays_of(layout):
    memory = np.zeros(layout.nbytes + 1, np.uint8)
    return [np.ndarray(one.shape, one.dtype, memory, one.offset) for one in layout.fields]


def end(field):
    return field.offset + math.prod(field.shape) * field.dtype.itemsize


@given(samples=st.integers(0, 9), steps=st.integers(0, 30), count=st.integers(0, len(STEPS)))
def test_what_is_computed_lies_behind_what_it_comes_from(samples, steps, count):
    layout = staged(samples, steps)
    program = Programmer(STEPS[:count]).program(NAMES, LEVELS, layout, drawn=False)
    assert program.copied.fields[: len(layout.fields)] == layout.fields
    assert program.whole.fields[: len(program.copied.fields)] == program.copied.fields
    assert program.copied.nbytes <= program.whole.nbytes
    last = 0
    for field in program.whole.fields:
        assert field.offset % ALIGNMENT == 0
        assert field.offset >= last
        last = end(field)
    assert last <= program.whole.nbytes
    assert set(program.delivered.fields) <= set(program.whole.fields)
    assert program.levels == (0, 0, int(count < 3))
    written = [one for step in program.steps for one in step.outputs]
    assert len(set(written)) == len(written)
    assert all(one >= len(program.copied.fields) for one in written)


def test_a_device_reads_the_same_program_off_what_was_copied():
    """The fetching side writes draws after the staged fields; the computing side finds them there."""
    layout = staged()
    here, there = Programmer(STEPS), pickle.loads(pickle.dumps(Programmer(STEPS)))
    fetching = here.program(NAMES, LEVELS, layout, drawn=False)
    computing = there.program(NAMES, LEVELS, fetching.copied, drawn=True)
    assert computing.whole == fetching.whole
    assert computing.delivered == fetching.delivered
    assert computing.levels == fetching.levels


@pytest.mark.parametrize(
    "step", [CutMix("image", "label", 7), MixUp("image", "label", 7), RandomErasing("image")]
)
def test_pictures_of_bfloat16_are_delivered_as_such_after_they_were_mixed(step):
    before = Normalize("image", dtype="bfloat16")

    def deliver(*steps):
        program = Programmer(steps, native=True).program(NAMES, LEVELS, staged(), drawn=False)
        return program.delivered.fields[0].dtype

    assert deliver(before, step) == deliver(before) != np.uint16


def test_threads_get_the_same_program():
    programmer, layouts = Programmer(STEPS), [staged(samples) for samples in range(1, 20)]

    def work():
        for samples, layout in [*enumerate(layouts, 1)] * 30:
            program = programmer.program(NAMES, LEVELS, layout, drawn=False)
            assert program.delivered.fields[0].shape[0] == samples

    run_threads(work)


@dataclass
class Raising:
    """A transform that raises in a given method."""

    where: str
    field: str | None = "label"
    error: Exception | None = None
    draws: int = 1

    def act(self, where):
        if where == self.where:
            raise self.error or ZeroDivisionError("by nought")

    def bind(self, inputs):
        self.act("bind")
        return self

    @property
    def outputs(self):
        self.act("outputs")
        return (((4,), np.dtype(np.int64)),)

    def draw(self, words, inputs):
        self.act("draw")
        return np.zeros((len(words), 1), np.int32)

    def check(self, inputs):
        self.act("check")

    def on_host(self, inputs, outputs):
        self.act("on_host")


class TestErrors:
    def run(self, *transforms):
        programmer = Programmer(transforms)
        program = programmer.program(NAMES, LEVELS, staged(), drawn=False)
        arrays = arrays_of(program.whole)
        program.check(arrays)
        programmer.fill_draws(program, arrays, range(4))
        program.run_on_host(arrays)
        return program, arrays

    @pytest.mark.parametrize("where", ["bind", "outputs", "draw", "check", "on_host"])
    def test_of_a_transform_name_it_and_its_field(self, where):
        with pytest.raises(SampleError) as caught:
            self.run(Raising(where))
        assert str(caught.value) == "field 'label': Raising raised ZeroDivisionError: by nought"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        with pytest.raises(SampleError, match="field 'image': too dark"):
            self.run(Raising(where, None, SampleError("too dark")))
        with pytest.raises(LoaderError, match="of the package"):
            self.run(Raising(where, error=LoaderError("of the package")))
        self.run(Raising("nowhere"))

    def test_of_a_draw_of_another_shape(self):
        class Wide(Raising):
            def draw(self, words, inputs):
                return np.zeros((len(words) + 1, 3), np.int32)

        with pytest.raises(SampleError, match="field 'label': Wide raised ValueError: could not broadcast"):
            self.run(Wide(""))

    def test_of_what_is_no_number(self):
        """A slot would hold only the addresses of Python objects, which are soon invalid."""

        class Objects(Raising):
            @property
            def outputs(self):
                return (((4,), np.dtype(object)),)

        with pytest.raises(SampleError, match="field 'label': Objects has an output of dtype object"):
            self.run(Objects(""))
