"""When two batches of PyTorch's tensors are alike."""

import importlib

import numpy as np


def same(ours, theirs):
    """Return whether two batches are equal: containers, dtypes and values."""
    torch = importlib.import_module("torch")
    if isinstance(theirs, torch.Tensor):
        return (
            type(ours) is type(theirs)
            and ours.dtype == theirs.dtype
            and ours.shape == theirs.shape
            and torch.equal(_numbers(ours), _numbers(theirs))
        )
    if type(ours) is not type(theirs):
        return False
    if isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, np.ndarray):
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    return ours == theirs or (ours != ours and theirs != theirs)


def _numbers(tensor):
    """Return a tensor that can be compared: bits in place of numbers, so that NaN is NaN, and 0 is not -0."""
    torch = importlib.import_module("torch")
    if tensor.is_quantized:
        return tensor.int_repr()
    if tensor.layout is not torch.strided:
        return tensor.to_dense()
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        # Which bits a NaN has depends on the dtypes that it passed on its way from float16 to float32.
        tensor = tensor.to(torch.float64)
        tensor = torch.where(tensor.isnan(), torch.nan, tensor)
    return tensor.reshape(-1).view(torch.uint8) if tensor.dtype is not torch.bool else tensor
