"""What programs do with a loader: idioms of tutorials and training scripts, with only the import changed."""

import copy
import itertools
import pickle
import random
import threading

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from tests.torch_suite.datasets import Made, Numbers

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Pictures(torch.utils.data.Dataset):
    """Pictures with labels, each changed by a transform, as in PyTorch's tutorial on data."""

    def __init__(self, count, transform=None, target_transform=None):
        self.count, self.transform, self.target_transform = count, transform, target_transform

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image, label = np.full((8, 8, 3), index, np.uint8), index % 4
        image = image if self.transform is None else self.transform(image)
        return image, label if self.target_transform is None else self.target_transform(label)


class Compose:
    """Several transforms, one after another."""

    def __init__(self, *steps):
        self.steps = steps

    def __call__(self, value):
        for step in self.steps:
            value = step(value)
        return value


def to_tensor(image):
    return torch.from_numpy(image).permute(2, 0, 1).float() / 255


def flip(image):
    return image.flip(-1) if torch.rand(1) < 0.5 else image


def lists(loader):
    return [batch.tolist() for batch in loader]


class TestTutorials:
    def test_one_hot_labels_by_a_lambda(self, lib):
        def one_hot(label):
            return torch.zeros(10).scatter_(0, torch.tensor(label), value=1)

        loader = lib.DataLoader(Pictures(64, to_tensor, one_hot), batch_size=16, shuffle=True)
        features, labels = next(iter(loader))
        assert features.size() == (16, 3, 8, 8)
        assert labels.sum(1).tolist() == [1] * 16

    def test_loaders_in_a_dict(self, lib):
        parts = {"train": Pictures(40, Compose(to_tensor, flip)), "val": Pictures(10, to_tensor)}
        loaders = {
            part: lib.DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2)
            for part, dataset in parts.items()
        }
        for _ in range(2):
            sizes = {part: sum(inputs.to("cpu").size(0) for inputs, _ in loaders[part]) for part in parts}
            assert sizes == {"train": 40, "val": 10}

    @WORKERS
    def test_a_model_learns(self, lib, workers):
        loader = lib.DataLoader(Pictures(16, to_tensor), 4, pin_memory=True, num_workers=workers)
        model = torch.nn.Linear(192, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for images, labels in loader:
            images, labels = images.to("cpu", non_blocking=True), labels.to("cpu", non_blocking=True)
            images.requires_grad_()
            loss = torch.nn.functional.cross_entropy(model(images.flatten(1)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert images.grad.shape == images.shape

    @WORKERS
    def test_sentences_are_padded(self, lib, workers):
        pairs = [(torch.arange(1 + index % 5), torch.arange(2 + index % 3)) for index in range(8)]
        loader = lib.DataLoader(pairs, 4, num_workers=workers, collate_fn=pad_pairs)
        assert [type(batch) for batch in loader] == [tuple, tuple]
        assert [(*source.shape, *target.shape) for source, target in loader] == [(4, 4, 4, 4), (5, 4, 4, 4)]

    def test_rare_classes_are_drawn_more_often(self, lib):
        labels = np.repeat([0, 1], [900, 100])
        weights = torch.from_numpy(1 / np.bincount(labels)[labels])
        sampler = lib.WeightedRandomSampler(weights, len(weights))
        dataset = lib.TensorDataset(torch.arange(1000.0)[:, None], torch.from_numpy(labels))
        drawn = torch.cat([batch for _, batch in lib.DataLoader(dataset, 50, sampler=sampler)])
        assert 0.4 < drawn.double().mean() < 0.6

    def test_folds(self, lib):
        for indices in (np.arange(0, 10, 2), np.arange(0, 10, 2).tolist()):
            loader = lib.DataLoader(range(10), 2, sampler=lib.SubsetRandomSampler(indices))
            assert sorted(itertools.chain.from_iterable(lists(loader))) == [0, 2, 4, 6, 8]

    def test_workers_are_seeded_as_the_notes_on_randomness_say(self, lib):
        loader = lib.DataLoader(
            Pictures(10, Compose(to_tensor, flip)),
            4,
            shuffle=True,
            num_workers=2,
            worker_init_fn=seed_others,
            generator=torch.Generator().manual_seed(0),
        )
        assert sum(len(labels) for _, labels in loader) == 10

    def test_a_range_is_divided_by_worker_init_fn(self, lib):
        loader = lib.DataLoader(Range(3, 9), num_workers=2, worker_init_fn=take_own_part)
        assert sorted(int(item) for item in loader) == [3, 4, 5, 6, 7, 8]

    @WORKERS
    def test_samples_that_could_not_be_read_are_left_out(self, lib, workers):
        loader = lib.DataLoader([1, None, 3, None, None, None], 2, num_workers=workers, collate_fn=skip_none)
        assert [None if batch is None else batch.tolist() for batch in loader] == [[1], [3], None]


def pad_pairs(samples):
    sources, targets = zip(*samples, strict=True)
    return pad_sequence(sources, padding_value=1), pad_sequence(targets, padding_value=1)


def seed_others(worker):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def skip_none(samples):
    samples = [sample for sample in samples if sample is not None]
    return torch.utils.data.default_collate(samples) if samples else None


class Range(torch.utils.data.IterableDataset):
    def __init__(self, start, stop):
        self.start, self.stop = start, stop

    def __iter__(self):
        return iter(range(self.start, self.stop))


def take_own_part(worker):
    info = torch.utils.data.get_worker_info()
    dataset = info.dataset
    size = -(-(dataset.stop - dataset.start) // info.num_workers)
    dataset.start += worker * size
    dataset.stop = min(dataset.start + size, dataset.stop)


@WORKERS
class TestIterating:
    def test_next_of_a_new_iterator_is_the_first_batch(self, lib, workers):
        loader = lib.DataLoader(Numbers(4), 2, num_workers=workers)
        assert [next(iter(loader)).tolist() for _ in range(3)] == [[0, 1]] * 3

    def test_without_end(self, lib, workers):
        batches = itertools.cycle(lib.DataLoader(Numbers(6), 2, num_workers=workers))
        assert lists(itertools.islice(batches, 5)) == [[0, 1], [2, 3], [4, 5], [0, 1], [2, 3]]

        def repeat(loader):
            while True:
                yield from loader

        batches = repeat(lib.DataLoader(Numbers(6), 2, shuffle=True, num_workers=workers))
        assert sorted(itertools.chain.from_iterable(lists(itertools.islice(batches, 3)))) == [
            0,
            1,
            2,
            3,
            4,
            5,
        ]

    def test_two_loaders_at_once(self, lib, workers):
        first, second = (lib.DataLoader(Numbers(count), 2, num_workers=workers) for count in (6, 4))
        assert [(one.tolist(), other.tolist()) for one, other in zip(first, second, strict=False)] == [
            ([0, 1], [0, 1]),
            ([2, 3], [2, 3]),
        ]

    def test_one_loader_twice_at_once(self, lib, workers):
        loader = lib.DataLoader(Numbers(4), 2, num_workers=workers)
        pairs = [(one.tolist(), other.tolist()) for one in loader for other in loader]
        assert pairs == list(itertools.product([[0, 1], [2, 3]], repeat=2))

    def test_in_a_thread(self, lib, workers):
        found = []
        loader = lib.DataLoader(Numbers(6), 2, num_workers=workers)
        thread = threading.Thread(target=lambda: found.extend(lists(loader)))
        thread.start()
        thread.join()
        assert found == [[0, 1], [2, 3], [4, 5]]

    def test_copies(self, lib, workers):
        loader = lib.DataLoader(Numbers(4), 2, num_workers=workers)
        for again in (pickle.loads(pickle.dumps(loader)), copy.copy(loader), copy.deepcopy(loader)):
            assert lists(again) == [[0, 1], [2, 3]]

    def test_batches_may_be_kept_and_changed(self, lib, workers):
        kept = []
        for batch in lib.DataLoader(Made(float, 20), 2, num_workers=workers):
            batch += 1
            kept.append(batch)
        assert torch.cat(kept).tolist() == list(range(1, 21))

    def test_a_transform_is_changed_between_epochs(self, lib, workers):
        loader = lib.DataLoader(Pictures(4, first), 4, num_workers=workers)
        assert [images.tolist() for images, _ in loader] == [[1] * 4]
        loader.dataset.transform = second
        assert [images.tolist() for images, _ in loader] == [[2] * 4]

    def test_the_end(self, lib, workers):
        epoch = iter(lib.DataLoader(Numbers(4), 2, num_workers=workers))
        assert len(epoch) == 2
        assert lists(epoch) == [[0, 1], [2, 3]]
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(epoch)


def first(image):
    return torch.tensor(1)


def second(image):
    return torch.tensor(2)


def test_tensors_and_arrays_are_datasets(lib):
    for dataset in (torch.arange(6.0).view(3, 2), np.arange(6.0).reshape(3, 2)):
        assert lists(lib.DataLoader(dataset, 2)) == [[[0, 1], [2, 3]], [[4, 5]]]
    assert list(lib.DataLoader([], 2)) == []


def test_samplers_of_ones_own(lib):
    class Backwards(torch.utils.data.Sampler):
        def __iter__(self):
            return iter([2, 1, 0])

        def __len__(self):
            return 3

    class Chosen:
        def __iter__(self):
            yield [0, 1]
            yield [2]

        def __len__(self):
            return 2

    assert lists(lib.DataLoader(Numbers(3), 2, sampler=Backwards())) == [[2, 1], [0]]
    assert lists(lib.DataLoader(Numbers(3), batch_sampler=Chosen())) == [[0, 1], [2]]
