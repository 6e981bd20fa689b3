"""Packed lists: what comes out is what went in, and workers share it."""

import os
import pickle
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloader import ComposeDataset, DataLoader, PackedList, StagingMemoryError
from gpuloader.sources.packed import pack_list
from gpuloader.system import platforms
from tests.fakes import nothing_left_behind
from tests.fetch.telling import read_name
from tests.sample_sets import Made

TEXT = st.text("a\0é€😀")  # of one to four bytes; tables of all characters take Hypothesis seconds to make
ITEMS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | st.binary(),
    lambda below: st.lists(below) | st.tuples(below, below) | st.dictionaries(TEXT, below),
    max_leaves=5,
)


@given(st.lists(ITEMS), st.slices(20))
def test_what_comes_out_is_what_went_in(items, part):
    packed = PackedList(iter(items))
    assert len(packed) == len(items)
    assert list(packed) == items
    assert packed[part] == items[part]
    for index in range(-len(items), len(items)):
        assert packed[index] == items[index]
    for beyond in (len(items), -len(items) - 1):
        with pytest.raises(IndexError, match=f"PackedList of {len(items)} samples has no sample {beyond}"):
            packed[beyond]


def test_pickles_of_it_hold_more_items_than_are_pickled_at_a_time():
    items = [f"{number}" for number in range(200_000)]
    packed = PackedList(items)
    assert packed[::1000] == items[::1000]
    again = pickle.loads(pickle.dumps(packed))
    assert isinstance(again, PackedList)
    assert (len(again), again[-1]) == (200_000, "199999")


def test_it_leaves_nothing_behind_not_even_in_a_full_memory(monkeypatch):
    def refuse(descriptor, nbytes):
        raise OSError(28, "No space left on device")

    with nothing_left_behind():
        packed = PackedList(range(1000))
        part = packed[3:5]
        del packed
    assert part == [3, 4]
    monkeypatch.setattr("gpuloader.sources.packed.reserve", refuse)
    with nothing_left_behind(), pytest.raises(StagingMemoryError, match="No space left"):
        PackedList(range(1000))


def test_without_memory_files_it_lies_in_an_unlinked_one(monkeypatch):
    monkeypatch.setattr(platforms, "has_memory_files", lambda: False)
    assert list(PackedList("abc")) == ["a", "b", "c"]


@pytest.mark.usefixtures("shared_server")
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_map_the_programs_memory(method):
    names = [f"picture {number}" for number in range(12)]
    dataset = Made(partial(read_name, PackedList(names)), 12)
    workers = {"start_method": method, "num_workers": 1 if method == "spawn" else 2}
    loader = DataLoader(dataset, places="cpu", batch_size=4, **workers)
    for _ in range(2):
        rows = [row for batch in loader for row in zip(*batch, strict=True)]
        assert [name for name, _, _ in rows] == names
        assert {mapped for _, mapped, _ in rows} == {1}
        assert os.getpid() not in {pid for _, _, pid in rows}


def test_two_lists_are_not_mixed_up():
    dataset = ComposeDataset([PackedList("abcd"), PackedList("efgh")])
    loader = DataLoader(dataset, places="cpu", batch_size=4, num_workers=1)
    assert [list(map(list, batch)) for batch in loader] == [[list("abcd"), list("efgh")]]


class TestListsAsDatasets:
    """`pack_list`, which the loader applies before it sends a list to workers."""

    def test_large_ones_are_packed_once_and_a_change_is_noticed(self):
        items = [f"{number}" for number in range(5000)]
        packed = pack_list(items, 20_000)
        assert list(packed) == items
        assert pack_list(items, 20_000) is packed
        items.reverse()
        again = pack_list(items, 20_000)
        assert again is not packed
        assert list(again) == items
        items.append("more")
        assert list(pack_list(items, 20_000)) == items

    @pytest.mark.parametrize(
        "dataset",
        [
            pytest.param(["a"] * 100, id="small"),
            pytest.param([["a"]] * 5000, id="mutable"),
            pytest.param([("a", ["b"])] * 5000, id="mutable inside"),
            pytest.param([*["a"] * 5000, {}], id="mutable at the end"),
            pytest.param([], id="empty"),
            pytest.param(range(5000), id="a range"),
            pytest.param({"a": 1}, id="a dict"),
        ],
    )
    def test_others_are_left_alone(self, dataset):
        assert pack_list(dataset, 20_000) is None

    def test_a_loader_reads_a_packed_list(self, monkeypatch, shared_server):
        monkeypatch.setattr("gpuloader.fetch.processes.workers._PACKED_NBYTES", 20_000)
        items = [(f"{number}.jpg", number) for number in range(5000)]
        loader = DataLoader(items, places="cpu", batch_size=100, num_workers=2, start_method="forkserver")
        for _ in range(2):
            names = [name for batch, _ in loader for name in batch]
            assert names == [name for name, _ in items]
        items.reverse()
        assert next(iter(loader))[0][0] == "4999.jpg"
