"""Places are values; what stands behind them is asked when they are used."""

import pickle

import pytest

from gpuloader import CPUPlace, CUDAPinnedPlace, CUDAPlace, PlaceError, cpu_places, cuda_places
from gpuloader.places import parse_place, parse_places

ALL = [CPUPlace(), CUDAPinnedPlace(), CUDAPlace(0), CUDAPlace(1)]


def test_equal_places_are_equal_and_hash_alike_others_are_not():
    assert len({*ALL, CPUPlace(), CUDAPlace(1)}) == 4
    assert CUDAPlace(0) == CUDAPlace() != CUDAPlace(1)
    assert CPUPlace() != CUDAPinnedPlace()


@pytest.mark.parametrize("place", ALL)
def test_a_places_repr_makes_it_again_and_it_pickles(place):
    names = {"CPUPlace": CPUPlace, "CUDAPinnedPlace": CUDAPinnedPlace, "CUDAPlace": CUDAPlace}
    assert eval(repr(place), names) == place
    assert pickle.loads(pickle.dumps(place)) == place


def test_places_do_not_change():
    with pytest.raises(AttributeError):
        CUDAPlace(0).index = 1


@pytest.mark.parametrize("index", [-1, 1.0, "0", True, None])
def test_an_index_is_a_number_of_0_or_more(index):
    with pytest.raises(PlaceError, match="device index of 0 or more"):
        CUDAPlace(index)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("cpu", CPUPlace()),
        ("gpu", CUDAPlace(0)),
        ("gpu:0", CUDAPlace(0)),
        ("gpu:12", CUDAPlace(12)),
        ("gpu_pinned", CUDAPinnedPlace()),
    ],
)
def test_strings_name_places(text, place):
    assert parse_place(text) == place


@pytest.mark.parametrize("text", ["", "CPU", "gpu:", "gpu:-1", "gpu:x", "cuda", 3, None])
def test_other_things_do_not(text):
    with pytest.raises(PlaceError, match="not a place") as caught:
        parse_place(text)
    assert isinstance(caught.value, ValueError)


def test_one_place_is_a_list_of_one():
    assert (
        parse_places("cpu") == parse_places([CPUPlace()]) == parse_places(p for p in ALL[:1]) == (CPUPlace(),)
    )


def test_cpu_places(monkeypatch):
    monkeypatch.delenv("CPU_NUM", raising=False)
    assert cpu_places() == [CPUPlace()]
    monkeypatch.setenv("CPU_NUM", "3")
    assert cpu_places() == [CPUPlace()] * 3
    assert cpu_places(2) == [CPUPlace()] * 2
    for wrong in ("0", "x", "-1"):
        monkeypatch.setenv("CPU_NUM", wrong)
        with pytest.raises(ValueError, match="CPU_NUM"):
            cpu_places()
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="device_count"):
            cpu_places(wrong)


def test_named_cuda_places_need_no_gpu(monkeypatch):
    assert cuda_places([1, 0]) == [CUDAPlace(1), CUDAPlace(0)]
    assert cuda_places(2) == [CUDAPlace(2)]
    monkeypatch.setenv("FLAGS_selected_gpus", "3,5")
    assert cuda_places() == [CUDAPlace(3), CUDAPlace(5)]
