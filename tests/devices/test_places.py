"""Places are values; their devices are opened only when they are used."""

import os
import pickle
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from gpuloader import CPUPlace, CUDAPinnedPlace, CUDAPlace, PlaceError, cpu_places, cuda_places
from gpuloader.devices import cuda, places
from gpuloader.devices.places import CustomPlace, parse_place, parse_places
from tests.loading import read_batches

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


class device:  # noqa: N801 - named like PyTorch's class
    """Stands in for ``torch.device``."""

    __module__ = "torch"

    def __init__(self, kind, index=None):
        self.type, self.index = kind, index

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


@pytest.mark.parametrize(("initialized", "index"), [(True, 2), (False, 0)])
def test_cuda_without_a_number_is_pytorchs_current_device(monkeypatch, initialized, index):
    cuda = SimpleNamespace(is_initialized=lambda: initialized, current_device=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert parse_place("cuda") == parse_place(device("cuda")) == CUDAPlace(index)
    assert parse_place("gpu") == parse_place("cuda:0") == CUDAPlace(0)


def paddle_place(name, *, what="", number=0, **members):
    """Return an object that stands in for a place of Paddle."""
    tests = {f"is_{kind}_place": lambda _, kind=kind: kind == what for kind in ("cpu", "gpu", "cuda_pinned")}
    body = {"__module__": "paddle.base.libpaddle", "gpu_device_id": lambda _: number, **tests, **members}
    return type(name, (), body)()


@pytest.mark.parametrize(
    ("given", "place"),
    [
        *((text, CPUPlace()) for text in ("cpu", device("cpu"), device("cpu", 0))),
        *((text, CUDAPlace(0)) for text in ("gpu", "gpu:0", "cuda", "cuda:0", device("cuda"))),
        *(("gpu:12", CUDAPlace(12)), ("cuda:3", CUDAPlace(3)), (device("cuda", 2), CUDAPlace(2))),
        ("gpu_pinned", CUDAPinnedPlace()),
        (paddle_place("CPUPlace"), CPUPlace()),
        (paddle_place("CUDAPlace", get_device_id=lambda _: 3), CUDAPlace(3)),
        (paddle_place("CUDAPinnedPlace"), CUDAPinnedPlace()),
        (paddle_place("Place", what="cpu"), CPUPlace()),  # of a tensor
        (paddle_place("Place", what="gpu", number=1), CUDAPlace(1)),
        (paddle_place("Place", what="cuda_pinned"), CUDAPinnedPlace()),
    ],
)
def test_strings_and_what_frameworks_have_for_it_name_places(given, place):
    assert parse_place(given) == place
    assert parse_places(given) == parse_places([given]) == parse_places(iter([given])) == (place,)


@pytest.mark.parametrize(
    "given",
    [
        *("", "CPU", "gpu:", "gpu:-1", "gpu:x", "cuda:", "cuda:x", "cpu:0", 3, None),
        *(device(kind) for kind in ("mps", "meta", "xpu")),
        *(paddle_place("XPUPlace"), paddle_place("Place", what="xpu")),
    ],
)
def test_other_things_do_not(given):
    with pytest.raises(PlaceError, match=r"not a place: .* a torch\.device of type 'cpu' or") as caught:
        parse_place(given)
    assert isinstance(caught.value, ValueError)


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
    monkeypatch.setenv("FLAGS_selected_gpus", "3, 5")
    assert cuda_places([1, 0]) == [CUDAPlace(1), CUDAPlace(0)]
    assert cuda_places(2) == [CUDAPlace(2)]
    assert cuda_places() == [CUDAPlace(3), CUDAPlace(5)]


@pytest.mark.parametrize("wrong", ["x", "0,", "-1", "0;1", "1.5"])
def test_selected_gpus_are_indices(monkeypatch, wrong):
    monkeypatch.setenv("FLAGS_selected_gpus", wrong)
    with pytest.raises(PlaceError, match="FLAGS_selected_gpus must list device indices"):
        cuda_places()


def test_a_custom_place_equals_only_itself():
    device = object()
    first, second = CustomPlace(device), CustomPlace(device)
    assert first == first
    assert first != second
    assert parse_places([first, second]) == (first, second)


def read(places):
    return list(read_batches(lambda: [[np.zeros((2, 3))]], places))


ASKING = {
    "a loader": lambda: read(CUDAPlace(0)),
    "a loader for a string": lambda: read("gpu:0"),
    "a loader for page-locked memory": lambda: read(CUDAPinnedPlace()),
    "one place of several": lambda: read([CPUPlace(), CUDAPlace(0)]),
    "all places": lambda: cuda_places(),
    "a device": lambda: places.open_device(CUDAPlace(0)),
}


class TestAskingForAGpuWhereThereIsNone:
    """Every use of a missing GPU raises an error that says what to do; creating the place does not."""

    @pytest.fixture(autouse=True)
    def no_device_is_remembered(self, monkeypatch):
        monkeypatch.delenv("FLAGS_selected_gpus", raising=False)
        monkeypatch.setattr(cuda, "forked", False)
        places._opened.clear()
        yield
        places._opened.clear()

    DRIVERS: ClassVar = {
        "no driver": (0, r"no NVIDIA driver was found.*CuPy 14\.0 is installed"),
        "no device": (13030, r"the driver supports CUDA 13\.3.*CuPy 14\.0 is installed"),
        "an older driver": (
            12040,
            r"CuPy 14\.0 .*CUDA 13\.2, .*most 12\.4; pip install '.*\[cuda12\]' instead",
        ),
        "an old driver": (
            11080,
            r"CuPy 14\.0 .*CUDA 13\.2, .* most 11\.8; update the driver, or use CPUPlace",
        ),
    }

    @pytest.fixture(params=DRIVERS)
    def cupy_alone(self, request, monkeypatch):
        version, message = self.DRIVERS[request.param]
        runtime = SimpleNamespace(driverGetVersion=lambda: version, runtimeGetVersion=lambda: 13020)
        fake = SimpleNamespace(
            __version__="14.0", cuda=SimpleNamespace(is_available=lambda: False, runtime=runtime)
        )
        monkeypatch.setattr(cuda, "cupy", fake)
        return message

    @pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
    def test_without_cupy(self, ask, monkeypatch):
        monkeypatch.setattr(cuda, "cupy", None)
        monkeypatch.setattr(cuda, "_import_error", "No module named 'cupy'")
        message = r"needs CuPy.*No module named 'cupy'.*pip install.*\[cuda13\].*CPUPlace\(\)"
        with pytest.raises(PlaceError, match=message):
            ask()

    @pytest.mark.parametrize("ask", ASKING.values(), ids=ASKING)
    def test_with_cupy_but_nothing_to_use_it_on(self, ask, cupy_alone):
        with pytest.raises(PlaceError, match=rf"gpu:0 is not available: {cupy_alone}"):
            ask()
        assert places.default_place() == CPUPlace()  # if the user did not ask for a GPU

    def test_an_index_beyond_the_last(self, monkeypatch):
        runtime = SimpleNamespace(getDeviceCount=lambda: 2)
        fake = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True, runtime=runtime))
        monkeypatch.setattr(cuda, "cupy", fake)
        with pytest.raises(PlaceError, match=r"gpu:2 is not available: this process sees 2 \(gpu:0, gpu:1\)"):
            places.open_device(CUDAPlace(2))
        assert cuda_places() == [CUDAPlace(0), CUDAPlace(1)]

    def test_whatever_hinders_cupy(self, tmp_path):
        """CuPy makes its cache folder when it is imported; a loader without `places` needs no GPU."""
        pytest.importorskip("cupy", reason="CuPy is not installed")
        (tmp_path / "file").touch()
        program = """
            import warnings
            from gpuloader import DataLoader, PlaceError
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    print([batch.tolist() for batch in DataLoader([1, 2], batch_size=2)])
            print(*(str(one.message) for one in caught), sep="\\n")
            try:
                DataLoader([1, 2], places="gpu")
            except PlaceError as error:
                print(error)
        """
        home = {"HOME": str(tmp_path / "file"), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", textwrap.dedent(program)]
        printed = subprocess.check_output(command, env=home, text=True, timeout=240)
        first, second, warning, error = printed.splitlines()
        assert first == second == "[[1, 2]]"
        for said in (warning, error):
            assert "NotADirectoryError" in said
            assert "set CUPY_CACHE_DIR to a folder that this process may write to" in said
        assert "delivered on the CPU" in warning
        assert "gpu:0 needs CuPy" in error
