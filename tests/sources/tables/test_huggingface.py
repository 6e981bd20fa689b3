"""Datasets of Hugging Face: every format, transforms, streams, and columns that go straight into slots."""

import pickle
from functools import partial

import numpy as np
import pytest

from gpuloader import (
    BatchSampler,
    ComposeDataset,
    ConcatDataset,
    DataFileError,
    MixDataset,
    SampleError,
    Subset,
    TarDataset,
    get_worker_info,
    random_split,
    write_shards,
)
from gpuloader.sources.block import Block
from gpuloader.sources.tables.huggingface import HuggingFaceRows
from tests import loading
from tests.sample_sets import INLINE, ONE_THREAD, PROCESSES, THREADS, WORKERS, name_workers

datasets = pytest.importorskip("datasets")
distributed = pytest.importorskip("datasets.distributed")

FORMATS = (None, "python", "numpy", "torch", "jax", "arrow", "pandas", "polars")
ROWS = 30
WORKERS = [*WORKERS, PROCESSES]


def make():
    rows, value = range(ROWS), datasets.Value
    columns = {
        "label": (datasets.ClassLabel(num_classes=ROWS), list(rows)),
        "box": (datasets.List(value("float64"), length=2), [[row / 2, row + 0.5] for row in rows]),
        "small": (value("int8"), [row % 100 for row in rows]),
        "name": (value("string"), [f"row {row}" for row in rows]),
        "words": (datasets.List(value("int32")), [list(range(row % 3 + 1)) for row in rows]),
        "even": (value("bool"), [row % 2 == 0 for row in rows]),
    }
    features = datasets.Features({name: kind for name, (kind, _) in columns.items()})
    return datasets.Dataset.from_dict({name: held for name, (_, held) in columns.items()}, features=features)


@pytest.fixture(scope="module")
def data():
    return make()


load = partial(loading.load, batch_size=7, pad={"words": -1})


def column(loader, name):
    return [value for batch in loader for value in list(batch[name])]


def labels(loader):
    return [int(one) for one in column(loader, "label")]


def needs(form):
    if form in ("torch", "jax", "pandas", "polars"):
        pytest.importorskip(form)


# Before a test computes with JAX: then a fork server starts the workers, and each imports datasets.
@pytest.mark.filterwarnings("ignore:importing .* starts threads:RuntimeWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("streamed", [False, True], ids=["rows", "stream"])
def test_shards_hold_pictures_as_they_are_stored(tmp_path, streamed, workers):
    pillow = pytest.importorskip("PIL.Image")
    pictures = [pillow.new("RGB", (9, 8), (row, 0, 0)) for row in range(ROWS)]
    columns = {"image": pictures, "label": list(range(ROWS))}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    dataset = datasets.Dataset.from_dict(columns, features=features)
    dataset = dataset.to_iterable_dataset(num_shards=3) if streamed else dataset
    write_shards(dataset, tmp_path, rows=12, format="tar", num_workers=workers)
    found = list(TarDataset(tmp_path, "image"))
    assert sorted(sample["label"] for sample in found) == list(range(ROWS))
    assert all(np.asarray(sample["image"])[0, 0, 0] == sample["label"] for sample in found)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("workers", WORKERS, ids=name_workers)
def test_every_format_delivers_the_rows(data, form, workers):
    needs(form)
    loader = load(data.with_format(form), shuffle=True, seed=2, **workers)
    for _ in range(2):
        for batch in loader:
            label = batch["label"].astype(int)
            assert (batch["box"] == np.stack([label / 2, label + 0.5], axis=1)).all()
            assert batch["name"] == [f"row {row}" for row in label]
            assert batch["words"].tolist() == [
                [*range(row % 3 + 1), *[-1] * (max(label % 3) - row % 3)] for row in label
            ]
            assert (batch["even"] == (label % 2 == 0)).all()
    assert sorted(labels(loader)) == list(range(ROWS))


@pytest.mark.parametrize("form", FORMATS)
def test_dtypes_are_those_of_the_format_and_those_that_hugging_face_delivers(data, form):
    needs(form)
    formatted = data.with_format(form)
    batch = next(iter(load(formatted)))
    names = ("label", "box", "small", "words", "even")
    whole = {"numpy": "int64", "torch": "int64", "jax": "int32"}.get(form)
    own = ("int64", "float64", "int8", "int32", "bool")
    assert [batch[name].dtype for name in names] == [
        *((whole, "float32", whole, whole, "bool") if whole else own)
    ]
    for name in ("label", "box", "small", "even") if whole else ():
        assert batch[name].dtype == np.asarray(formatted[:7][name]).dtype, name


@pytest.mark.parametrize("form", [None, "numpy", "pandas"])
def test_the_formats_columns_are_obeyed(data, form):
    needs(form)
    chosen = data.with_format(form, columns=["name", "label"])
    assert list(next(iter(load(chosen, pad=None)))) == ["label", "name"]
    if form == "numpy":
        halves = data.with_format(form, columns=["box"], dtype=np.float16)
        assert next(iter(load(halves, pad=None)))["box"].dtype == np.float16
    everything = data.with_format(form, columns=["name", "label"], output_all_columns=True)
    assert list(next(iter(load(everything)))) == ["label", "name", "box", "small", "words", "even"]


@pytest.mark.parametrize("joined", [0, 1 << 25])
def test_rows_that_were_shuffled_selected_and_filtered(data, joined, monkeypatch):
    monkeypatch.setattr("gpuloader.sources.tables.arrow._JOINED", joined)
    for chosen in (
        data.shuffle(seed=3),
        data.select([5, 3, 29, 0]),
        data.filter(lambda row: row["label"] % 3 == 0),
        data.select(range(29, -1, -1)),
        data.shard(4, 1),
        data.train_test_split(0.3, seed=1)["test"],
        datasets.concatenate_datasets([data, data.select([2, 1])]),
    ):
        assert labels(load(chosen)) == list(chosen["label"])
        assert sorted(labels(load(chosen, shuffle=True, seed=1))) == sorted(chosen["label"])
    for form in (None, "numpy"):
        assert list(load(data.select([]).with_format(form))) == []


def test_files_are_mapped_by_each_process_itself(data, tmp_path):
    data.save_to_disk(tmp_path / "rows", num_shards=4)
    stored = datasets.load_from_disk(tmp_path / "rows")
    rows = load(stored)._epochs.plan.source.dataset
    assert isinstance(rows, HuggingFaceRows)
    assert labels(load(stored)) == list(range(ROWS))  # opens the columns
    again = pickle.loads(pickle.dumps(rows))
    assert len(pickle.dumps(rows)) < 20_000
    assert labels(load(again, collate_fn=None)) == list(range(ROWS))


@pytest.mark.parametrize("workers", WORKERS, ids=name_workers)
def test_functions_transform_the_rows(data, workers):
    def double(batch):
        twice = [2 * label for label in batch["label"]]
        return {"twice": twice, "long": [name * 2 for name in batch["name"]]}

    transformed = data.with_transform(double)
    (batch, *_) = load(transformed, pad=None, shuffle=True, seed=1, **workers)
    assert batch["twice"].dtype == np.int64
    assert batch["long"] == [f"row {label // 2}" * 2 for label in batch["twice"]]
    in_place = make()
    in_place.set_transform(double, columns=["label", "name"])
    assert column(load(in_place, pad=None), "twice") == list(range(0, 2 * ROWS, 2))


def test_pictures_are_decoded(tmp_path):
    image = pytest.importorskip("PIL.Image")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    pictures = [image.fromarray(np.full((4, 5, 3), number, np.uint8)) for number in range(6)]
    dataset = datasets.Dataset.from_dict({"image": pictures, "label": range(6)}, features=features)
    for form in (None, "numpy", "arrow"):
        batch = next(iter(load(dataset.with_format(form), pad=None)))
        assert (batch["image"].shape, batch["image"].dtype) == ((6, 4, 5, 3), np.uint8)
        assert batch["image"][:, 0, 0, 0].tolist() == batch["label"].tolist() == list(range(6))


def test_matrices_and_structs_and_lists_of_text():
    text = datasets.Value("string")
    features = {
        "matrix": datasets.Array2D((2, 3), "float32"),
        "point": {"x": datasets.Value("int64"), "name": text},
        "tags": datasets.List(text),
    }
    rows = {
        "matrix": [np.full((2, 3), row) for row in range(4)],
        "point": [{"x": row, "name": str(row)} for row in range(4)],
        "tags": [["a"] * row for row in range(4)],
    }
    (batch,) = load(datasets.Dataset.from_dict(rows, features=datasets.Features(features)), pad=None)
    assert (batch["matrix"].shape, batch["matrix"].dtype) == ((4, 2, 3), np.float32)
    assert (batch["point"]["x"].tolist(), batch["point"]["name"]) == ([0, 1, 2, 3], ["0", "1", "2", "3"])
    assert batch["tags"] == rows["tags"]


def test_a_null_among_numbers_is_an_error():
    dataset = datasets.Dataset.from_dict({"age": [1, None, 3], "name": ["a", None, "c"]})
    for one in (dataset, dataset.to_iterable_dataset()):
        with pytest.raises(DataFileError, match="column 'age': 1 of 3 values is null"):
            list(load(one, pad=None))
    for without in (dataset.remove_columns("age"), dataset.with_format("numpy", columns=["name"])):
        assert column(load(without, pad=None), "name") == ["a", None, "c"]


def test_the_rest_of_the_loader_applies(data):
    before, again = loading.resume(lambda: load(data, shuffle=True, seed=4, **THREADS), 2)
    assert labels(before) + labels(again) == labels(load(data, shuffle=True, seed=4))
    ranks = [load(data, shard=(rank, 2), shuffle=True, seed=4) for rank in range(2)]
    steps = zip(*ranks, strict=True)
    divided = [int(one) for step in steps for batch in step for one in batch["label"]]
    assert divided == labels(load(data, shuffle=True, seed=4))
    with pytest.raises(SampleError, match=r"datasets\.Dataset of 30 samples has no sample 30"):
        labels(load(data, sampler=[30]))
    assert load(data).dataset is data
    whole = BatchSampler(sampler=[7, 0, -1, 4], batch_size=2)
    found = [batch["label"].tolist() for batch in load(data, pad=None, batch_size=None, sampler=whole)]
    assert found == [[int(data[row]["label"]) for row in rows] for rows in ([7, 0], [-1, 4])]
    with pytest.raises(TypeError, match=r"got a DatasetDict of \['train', 'test'\]; pass one of them"):
        load(data.train_test_split(0.5))


class TestStreams:
    @pytest.mark.parametrize("form", FORMATS)
    def test_every_format_delivers_the_rows_in_its_dtypes(self, data, form):
        needs(form)
        loader = load(data.to_iterable_dataset(num_shards=3).with_format(form))
        for batch in loader:
            label = np.asarray(batch["label"]).astype(int)
            assert (np.asarray(batch["box"]) == np.stack([label / 2, label + 0.5], axis=1)).all()
            assert batch["name"] == [f"row {row}" for row in label]
            if form in ("numpy", "torch"):
                assert (batch["label"].dtype, batch["box"].dtype, batch["words"].dtype) == ("i8", "f4", "i8")
        assert labels(loader) == list(range(ROWS))

    @pytest.mark.parametrize("shards", [1, 2, 5])
    @pytest.mark.parametrize("workers", WORKERS, ids=name_workers)
    @pytest.mark.parametrize("mapped", [False, True])
    def test_workers_divide_the_shards_or_the_samples(self, data, shards, workers, mapped):
        pytest.importorskip("torch")  # Hugging Face asks it about the worker
        stream = data.to_iterable_dataset(num_shards=shards)
        if mapped:
            stream = stream.map(lambda row: {"label": row["label"] + 100})
        loader = load(stream, pad=None, ragged=["words"], **workers)
        for _ in range(2):
            assert sorted(labels(loader)) == list(range(100 * mapped, ROWS + 100 * mapped))

    def test_ranks_divide_the_shards_too(self, data, monkeypatch):
        found, split = [], []
        for rank in range(2):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", "2")
            found.append(labels(load(data.to_iterable_dataset(num_shards=6), **ONE_THREAD)))
            assert labels(load(data.to_iterable_dataset(num_shards=6))) == found[-1]
            theirs = distributed.split_dataset_by_node(data.to_iterable_dataset(num_shards=6), rank, 2)
            split += labels(load(theirs, num_workers=2, worker_type="thread"))
        assert sorted(found[0] + found[1]) == sorted(split) == list(range(ROWS))
        assert len(found[0]) == 15

    @pytest.mark.parametrize("workers", [INLINE, THREADS], ids=name_workers)
    def test_the_loader_may_divide_it(self, data, workers):
        stream = data.to_iterable_dataset(num_shards=3)
        ranks = [load(stream, shard=(rank, 2), **workers) for rank in range(2)]
        steps = zip(*ranks, strict=True)
        divided = [int(one) for step in steps for batch in step for one in batch["label"][batch["mask"]]]
        assert sorted(divided) == list(range(ROWS))

    def test_an_epoch_is_shuffled_anew_and_can_be_repeated(self, data):
        loader = load(data.to_iterable_dataset(num_shards=5).shuffle(seed=2, buffer_size=10))
        first, second = labels(loader), labels(loader)
        assert sorted(first) == sorted(second) == list(range(ROWS))
        assert first != second
        loader.set_epoch(0)
        assert labels(loader) == first

    @pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, PROCESSES], ids=name_workers)
    @pytest.mark.parametrize("kind", ["tables", "mapped", "buffer", "generator", "mixed"])
    def test_a_loader_resumes_in_the_middle(self, data, workers, kind):
        stream = data.to_iterable_dataset
        source = {
            "tables": lambda: stream(num_shards=5),
            "mapped": lambda: stream(num_shards=5).map(lambda row: row),
            "buffer": lambda: stream(num_shards=5).shuffle(seed=1, buffer_size=8),
            "generator": lambda: datasets.IterableDataset.from_generator(
                count_up, gen_kwargs={"starts": [0, 10, 20, 30]}
            ),
            "mixed": lambda: MixDataset(
                [stream(num_shards=shards) for shards in (5, 3)], [2, 1], at_end="drop"
            ),
        }[kind]()
        options = {"pad": None, "ragged": [] if kind == "generator" else ["words"], "seed": 1, **workers}

        def make():
            loader = load(source, **options)
            loader.set_epoch(3)
            return loader

        before, again = loading.resume(make, 3)
        found = labels(before) + labels(again)
        assert found == labels(make())
        assert len(labels(again)) == len(found)  # the next epoch starts at its beginning

    @pytest.mark.parametrize("workers", [INLINE, ONE_THREAD, PROCESSES], ids=name_workers)
    @pytest.mark.parametrize("mapped", [False, True])
    def test_ranks_that_share_the_samples_of_a_shard_resume(self, data, workers, mapped, monkeypatch):
        stream = data.to_iterable_dataset().remove_columns("words")
        if mapped:
            stream = stream.map(lambda row: row)

        def make():
            return load(stream, pad=None, batch_size=2, **workers)

        monkeypatch.setenv("WORLD_SIZE", "3")
        found, saved = [], None
        for rank in range(3):
            monkeypatch.setenv("RANK", str(rank))
            before, again = loading.resume(make, 2)
            saved = saved or again.state_dict()
            rest = labels(again)
            found += labels(before) + rest
            again = make()
            again.load_state_dict(saved)  # that of the first rank, which may have saved for all
            assert labels(again) == rest
        assert sorted(found) == list(range(ROWS))
        monkeypatch.setenv("WORLD_SIZE", "4")
        again = make()
        again.load_state_dict(saved)
        with pytest.raises(SampleError, match=r"workers of all ranks shared it, got \d+; use as many"):
            labels(again)

    def test_workers_info_is_as_before_for_functions_that_ask(self, data):
        torch = pytest.importorskip("torch")

        def ask(row):
            theirs = torch.utils.data.get_worker_info()
            return {"label": row["label"], "worker": get_worker_info().id, "theirs": theirs.id}

        stream = data.to_iterable_dataset(num_shards=4).map(ask)
        loader = load(stream, pad=None, ragged=["words"], batch_size=2, **PROCESSES)
        asked = [(batch["worker"].tolist(), batch["theirs"].tolist()) for batch in loader]
        assert [ours for ours, _ in asked] == [theirs for _, theirs in asked]
        assert {ours for batch, _ in asked for ours in batch} == {0, 1}


def count_up(starts):
    for start in starts:
        for number in range(start, start + 10):
            yield {"label": number}


class TestInOtherDatasets:
    """`random_split` and the like take them as they are, and their columns are still read as columns."""

    @pytest.mark.parametrize("options", WORKERS, ids=name_workers)
    def test_parts(self, data, options):
        train, test = random_split(data, [0.8, 0.2], seed=0)
        assert train.dataset is data
        loaders = load(train, **options), load(test, **options)
        assert loaders[0].dataset is train
        assert sorted(labels(loaders[0]) + labels(loaders[1])) == list(range(ROWS))
        batch = next(iter(loaders[0]))
        assert batch["box"].tolist() == [[row / 2, row + 0.5] for row in batch["label"].tolist()]

    def test_no_rows_are_made(self, data, monkeypatch):
        made = []
        iterate = Block.__iter__
        monkeypatch.setattr(Block, "__iter__", lambda block: made.append(block) or iterate(block))
        assert len(labels(load(data, shuffle=True, seed=1))) == ROWS
        assert len(made) == 1  # the sample that settles the form
        made.clear()
        part = Subset(Subset(data, range(20)), range(0, 20, 2))
        assert labels(load(part, batch_size=5)) == list(range(0, 20, 2))
        assert len(made) == 1

    def test_several(self, data):
        other = datasets.Dataset.from_dict({"label": [1, 2]})
        both = ConcatDataset([data.select_columns("label"), other])
        assert labels(load(both, pad=None)) == [*range(ROWS), 1, 2]
        assert sorted(labels(load(MixDataset([data, data], [1, 1])))) == sorted([*range(ROWS)] * 2)
        box, row = next(iter(load(ComposeDataset([data.select_columns("box"), range(ROWS)]), pad=None)))
        assert (box["box"].shape, row.tolist()) == ((7, 2), list(range(7)))
