"""What a collate_fn returns: classes of the user's, packed sequences; and gradients."""

import functools

import pytest
import torch
from torch.nn.utils import rnn


class Batch:
    """A batch with methods of its own."""

    def __init__(self, samples):
        inputs, targets = zip(*samples, strict=True)
        self.inputs, self.targets = torch.stack(inputs), torch.stack(targets)

    def pin_memory(self):
        self.pinned = True
        return self


def pack(samples, batch_first=False):
    data = torch.stack([sample for sample, _ in samples], 0 if batch_first else 1)
    lengths = torch.arange(len(samples)) + 1
    return rnn.pack_padded_sequence(data, lengths, batch_first=batch_first, enforce_sorted=False)


def rows(lib):
    values = torch.arange(50, dtype=torch.float32).view(10, 5)
    return lib.TensorDataset(values, values)


WORKERS = pytest.mark.parametrize("workers", [0, 1])


@WORKERS
@pytest.mark.parametrize("pin_memory", [False, True])
def test_a_class(lib, workers, pin_memory):
    loader = lib.DataLoader(rows(lib), 2, collate_fn=Batch, num_workers=workers, pin_memory=pin_memory)
    batches = list(loader)
    assert all(type(batch) is Batch for batch in batches)
    assert torch.equal(torch.cat([batch.inputs for batch in batches]), rows(lib).tensors[0])
    # PyTorch, too, page-locks nothing where there is no GPU.
    if not torch.cuda.is_available():
        assert not any(hasattr(batch, "pinned") or batch.inputs.is_pinned() for batch in batches)


@WORKERS
@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences(lib, workers, batch_first):
    function = functools.partial(pack, batch_first=batch_first)
    loader = lib.DataLoader(rows(lib), 2, collate_fn=function, num_workers=workers)
    for number, batch in enumerate(loader):
        assert type(batch) is rnn.PackedSequence
        data, lengths = rnn.pad_packed_sequence(batch, batch_first=True)
        assert lengths.tolist() == [1, 2]
        assert data[:, 0].tolist() == [10.0 * number, 10.0 * number + 5]


def name_boxes(samples):
    return {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64), "name": str(samples)}


@WORKERS
def test_empty_tensors_keep_their_strides(lib, workers):
    (batch,) = lib.DataLoader([1, 2], 2, collate_fn=name_boxes, num_workers=workers)
    assert (batch["boxes"].shape, batch["boxes"].stride()) == ((0, 4), (4, 1))
    assert (batch["labels"].shape, batch["labels"].stride()) == ((0,), (1,))


@pytest.mark.filterwarnings("ignore:a tensor that requires a gradient:UserWarning")
def test_gradients(lib):
    samples = [torch.ones(2, requires_grad=True) * 3 for _ in range(2)]
    for function in (None, torch.stack):
        [batch] = lib.DataLoader(samples, 2, collate_fn=function)
        assert batch.tolist() == [[3, 3], [3, 3]]
        assert batch.requires_grad is (function is torch.stack or not lib.differs("batches-have-no-gradient"))


@WORKERS
def test_a_batch_sampler_may_yield_text_and_nothing(lib, workers):
    keyed = lib.DataLoader({"a": 1, "b": 2, "c": 3}, batch_sampler=["ab", "c"], num_workers=workers)
    assert [batch.tolist() for batch in keyed] == [[1, 2], [3]]
    options = {"batch_sampler": [[0], [], [1, 2]], "num_workers": workers}
    assert list(lib.DataLoader([5, 6, 7], collate_fn=list, **options)) == [[5], [], [6, 7]]
    epoch = iter(lib.DataLoader([5, 6, 7], **options))
    assert next(epoch).tolist() == [5]
    with lib.raises(IndexError):
        next(epoch)
    assert next(epoch).tolist() == [6, 7]


@WORKERS
def test_a_batch_sampler_need_not_call_the_initialization_of_its_base(lib, workers):
    class Batches(torch.utils.data.BatchSampler):
        def __init__(self):
            pass

        def __iter__(self):
            return iter([[2], [0, 1]])

    loader = lib.DataLoader([5, 6, 7], batch_sampler=Batches(), num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[7], [5, 6]]
