"""random_split and Subset."""

import pytest
import torch


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("lengths", [[1, 2], [0.1], [1.1], [3, 2]])
def test_lengths_add_up_to_the_dataset(lib, lengths):
    with pytest.raises(ValueError):  # noqa: PT011
        lib.random_split([1, 2, 3, 4], lengths)


@pytest.mark.parametrize(
    ("count", "lengths", "sizes"),
    [
        (6, [2, 4], [2, 4]),
        (6, [0.5, 0.5], [3, 3]),
        (3, [0.5, 0.5], [2, 1]),
        (106, [0.1, 0.2, 0.3, 0.4], [11, 22, 31, 42]),
    ],
)
def test_parts_have_the_sizes(lib, count, lengths, sizes):
    """What rounding leaves goes to the parts in turn."""
    parts = lib.random_split(range(count), lengths, generator=seeded(1))
    assert [len(part) for part in parts] == sizes


@pytest.mark.parametrize("lengths", [[2, 4], [0.33, 0.67]])
def test_every_sample_is_in_one_part(lib, lengths):
    first, second = lib.random_split([5, 2, 3, 4, 1, 6], lengths)
    assert sorted([*first, *second]) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("lengths", [[5], [1.0]])
def test_the_dataset_is_asked_for_plain_integers(lib, lengths):
    class Typed:
        def __getitem__(self, index):
            assert type(index) is int
            return index

        def __len__(self):
            return 5

    [part] = lib.random_split(Typed(), lengths)
    assert sorted(int(batch) for batch in lib.DataLoader(part)) == [0, 1, 2, 3, 4]


def test_a_generator_determines_the_parts(lib):
    parts = lib.random_split(range(10), [3, 7], generator=seeded(1))
    assert [list(part) for part in parts] == [[5, 6, 1], [2, 0, 8, 9, 3, 7, 4]]


@pytest.mark.parametrize("lengths", [[60, 40], [0.5, 0.5], [0.33, 0.33, 0.34]])
def test_the_same_generator_makes_the_parts_of_pytorch(lib, lengths):
    first = lib.random_split(range(100), lengths, generator=seeded(42))
    second = torch.utils.data.random_split(range(100), lengths, generator=seeded(42))
    assert [list(part) for part in first] == [list(part) for part in second]


def test_the_global_generator_is_used_only_without_one(lib):
    state = torch.get_rng_state()
    expected = torch.rand(10)
    torch.set_rng_state(state)
    lib.random_split(range(10), [5, 5], generator=seeded(42))
    assert torch.equal(torch.rand(10), expected)
    torch.set_rng_state(state)
    lib.random_split(range(10), [5, 5])
    assert not torch.equal(torch.rand(10), expected)


SLICES = [slice(None), slice(1, 2), slice(0, 2), slice(0, -1, 2)]


@pytest.mark.parametrize("where", SLICES, ids=str)
def test_a_subset_is_sliced_like_its_dataset(lib, where):
    dataset = lib.TensorDataset(torch.tensor([1, 2, 3, 4, 5]))
    subset = lib.Subset(dataset, [0, 1, 2, 3, 4])
    assert torch.equal(subset[where][0], dataset[where][0])
    nested = lib.Subset(subset, [0, 1, 2, 3, 4])
    assert torch.equal(nested[where][0], dataset[where][0])


@pytest.mark.parametrize("where", SLICES, ids=str)
def test_a_part_is_sliced_by_its_indices(lib, where):
    dataset = lib.TensorDataset(torch.tensor([1, 2, 3, 4, 5]))
    part, _ = lib.random_split(dataset, [4, 1])
    assert torch.equal(part[where][0], dataset[part.indices[where]][0])
    inner, _ = lib.random_split(part, [3, 1])
    chosen = [part.indices[index] for index in inner.indices]
    assert torch.equal(inner[where][0], dataset[chosen[where]][0])
