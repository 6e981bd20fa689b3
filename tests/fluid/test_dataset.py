"""Datasets of text files, and loaders over them."""

import random

import pytest

from gpuloader import DataLoader, SampleError, data, fluid
from tests.fakes import nothing_left_behind

FEEDS = [data("x", [None, 2, 3]), data("y", [None, 1], "int64")]


@pytest.fixture
def files(tmp_path):
    for name, numbers in (("a", range(7)), ("b", range(10, 14))):
        lines = [f"6 {' '.join([str(number)] * 6)} 1 {number}\n" for number in numbers]
        (tmp_path / name).write_text("".join(lines))
    return [tmp_path / "a", tmp_path / "b"]


def make(files, kind="QueueDataset", size=3):
    dataset = fluid.DatasetFactory().create_dataset(kind)
    dataset.set_batch_size(size)
    dataset.set_thread(1)
    dataset.set_use_var(FEEDS)
    dataset.set_filelist(files)
    dataset.set_pipe_command("cat")
    if kind == "InMemoryDataset":
        dataset.load_into_memory()
    return dataset


def numbers(loader):
    return [[entry["y"].ravel().tolist() for entry in step] for step in loader]


WHOLE = [[0, 1, 2], [3, 4, 5], [6, 10, 11], [12, 13]]


@pytest.mark.parametrize("kind", ["QueueDataset", "InMemoryDataset"])
def test_batches_run_on_from_file_to_file(files, kind):
    loader = DataLoader.from_dataset(make(files, kind), fluid.cpu_places(1), drop_last=False)
    with nothing_left_behind():
        for _ in range(2):
            assert numbers(loader) == [[batch] for batch in WHOLE]
        assert numbers(loader()) == [[batch] for batch in WHOLE]
        loader._epochs._idle.clear()
    [first] = next(loader())
    assert first["x"].shape == (3, 2, 3)


@pytest.mark.parametrize("drop_last", [False, True])
def test_several_places_take_turns(files, drop_last):
    loader = DataLoader.from_dataset(make(files), "cpu", drop_last)
    assert numbers(loader) == [[batch] for batch in WHOLE[: 4 - drop_last]]
    loader = DataLoader.from_dataset(make(files, size=4), fluid.cpu_places(2), drop_last)
    assert numbers(loader) == [[[0, 1, 2, 3], [4, 5, 6, 10]], [[11, 12, 13]]][: 2 - drop_last]


def test_samples_in_memory_can_be_shuffled_and_released(files):
    dataset = make(files, "InMemoryDataset", size=11)
    loader = DataLoader.from_dataset(dataset, "cpu")
    orders = []
    for seed in (1, 2):
        random.seed(seed)
        dataset.local_shuffle() if seed == 1 else dataset.global_shuffle()
        orders += numbers(loader)[0]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == [*range(7), *range(10, 14)]
    assert dataset.get_memory_data_size() == 11
    dataset.release_memory()
    with pytest.raises(AssertionError, match="call load_into_memory first"):
        dataset.get_memory_data_size()


def test_words_of_varying_number(tmp_path):
    path = tmp_path / "words"
    path.write_text("3 1 2 3\n1 4\n")
    dataset = make([path], size=2)
    dataset.set_use_var([data("words", [None, 1], "int64", lod_level=1)])
    [[batch]] = list(DataLoader.from_dataset(dataset, "cpu"))
    assert batch["words"].recursive_sequence_lengths() == [[3, 1]]


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: make([], "Dataset"), ValueError, "must be one of 'QueueDataset', 'InMemoryDataset'"),
        (lambda: DataLoader.from_dataset([1, 2], "cpu"), TypeError, "got list; for other datasets, use Data"),
        (fluid.QueueDataset().read, AssertionError, "call set_use_var first"),
        (lambda: DataLoader.from_dataset(fluid.QueueDataset(), "cpu"), ValueError, "feed_list is empty"),
    ],
)
def test_what_is_wrong_is_said(act, error, message, tmp_path):
    with pytest.raises(error, match=message):
        act()
    path = tmp_path / "narrow"
    path.write_text("5 1 2 3 4 5 1 7\n")
    message = r"batch 0, sample 0, field 'x': expected shape \(2, 3\), got \(5,\)"
    with pytest.raises(SampleError, match=message):
        list(DataLoader.from_dataset(make([path], size=1), "cpu"))
