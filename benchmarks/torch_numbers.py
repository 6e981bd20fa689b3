"""A dataset of PyTorch's, in a module of its own, as most are."""

import torch


class Numbers(torch.utils.data.Dataset):
    """64 samples of a tensor and its number."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((8,), float(index)), index
