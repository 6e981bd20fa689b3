"""Values that are not arrays are sent from a worker process along with the batch, if they can be pickled."""

from functools import partial

import numpy as np
import pytest

from gpuloader import LoaderError
from tests.fetch import faulty
from tests.fetch.faulty import OwnError, loader
from tests.fetch.ways import PROCESSES
from tests.sample_sets import Made

pytestmark = pytest.mark.usefixtures("shared_server", "nothing_left")


class Named(Made):
    """Samples of an array and another object."""

    def __getitem__(self, index):
        return np.full(3, index), self.make(index)


def make_generator(index):
    return (n for n in range(index))


def describe_index(index):
    return f"{type(index).__name__} {index}"


def test_indices_of_every_kind_arrive_as_they_are():
    """Integers lie on the board that workers share, and all others travel with the task."""
    batches = [
        [0, 1], [np.int64(2), np.int64(3)], ["key", "other"], [True, 1], [(1, 2)], [2**70, 1], [1.5],
        range(3), np.arange(2), np.arange(2, dtype=np.uint8), list(range(300)),
    ]  # fmt: skip
    wanted = list(loader(Made(describe_index), batch_size=1, batch_sampler=batches, num_workers=0))
    assert len(wanted) == len(batches)
    assert list(loader(Made(describe_index), batch_size=1, batch_sampler=batches)) == wanted


def make_generator_at_first(path, index):
    made = []
    faulty.at_first(path, partial(made.append, make_generator(index)))
    return made[0] if made else str(index) * 100_000


@pytest.mark.parametrize("options", PROCESSES)
def test_a_worker_whose_batch_did_not_pickle_sends_the_next_one_whole(options, tmp_path):
    """What it would have told of the batches' form has not arrived. The objects are larger than a message."""
    make = partial(make_generator_at_first, str(tmp_path / "once"))
    one = loader(Named(make, 8), num_workers=1, **options)
    with pytest.raises(LoaderError, match="batch 0 contains a non-array value that cannot be p"):
        list(one)
    for _ in range(2):
        for numbers, texts in one:
            assert texts == [str(index) * 100_000 for index in numbers[:, 0].tolist()]
    one.close()


class Refusing:
    def __reduce__(self):
        return faulty.fail, (OwnError("not here"),)


def make_refusing(index):
    return Refusing()


@pytest.mark.parametrize("options", PROCESSES)
@pytest.mark.parametrize(
    ("make", "message", "cause"),
    [
        (make_generator, r"that cannot be p.*worker_type='thread'", TypeError),
        (make_refusing, r"that cannot be unpickled.*not here", type(None)),
    ],
)
def test_objects_that_do_not_pickle_or_unpickle(options, make, message, cause):
    one = loader(Named(make, 8), **options)
    for _ in range(2):
        with pytest.raises(LoaderError, match=f"batch 0 contains a non-array value .*{message}") as caught:
            list(one)
        assert type(caught.value.__cause__) is cause
    one.close()


def test_classes_of_the_program_itself_come_back_as_they_are():
    """They are sent to the workers by value, so their names do not exist there."""
    done = faulty.run_program(
        """
        from collections import namedtuple
        from dataclasses import dataclass

        import numpy as np
        from tests.fetch.faulty import loader
        from tests.sample_sets import Made

        Pair = namedtuple("Pair", "image label")

        @dataclass
        class Label:
            number: int

        def make(index):
            return Pair(np.full(3, index), Label(index))

        if __name__ == "__main__":
            one = loader(Made(make, 8), start_method="forkserver", persistent_workers=True)
            for _ in range(2):
                for batch in one:
                    assert type(batch) is Pair, type(batch)
                    assert batch.label == [Label(index) for index in batch.image[:, 0].tolist()]
            print("done")
        """
    )
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
