"""Train a small GPT on a folder of text files, packed into rows: attention stays within each document.

    python examples/train_gpt.py --made 200 --epochs 2                 on documents that it makes itself
    python examples/train_gpt.py path/to/texts --epochs 3 --length 1024

The tokens are bytes. All documents are written to one file of tokens, which is memory-mapped, so that it may
be larger than the memory. `PackedSequences` packs them into rows. On a GPU with FlashAttention, its
variable-length call attends within each document; elsewhere a mask does.

A run that is stopped resumes in the middle of an epoch, with the same rows in the same order:

    python examples/train_gpt.py --made 200 --stop-after 3 --checkpoint half.pt
    python examples/train_gpt.py --made 200 --resume half.pt

The example needs torch (a CPU build is enough).
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gpuloader import DataLoader, PackedSequences
from gpuloader.transforms import Cast

try:
    from flash_attn import flash_attn_varlen_func
except ImportError:
    flash_attn_varlen_func = None

SEED = 1
END, TOKENS = 0, 256  # a byte of 0 ends each document
WORDS = ("the", "loader", "feeds", "a", "model", "with", "rows", "of", "packed", "text")


def make_texts(root: Path, count: int) -> None:
    """Write documents of random words, whose lengths are log-normal."""
    random = np.random.default_rng(SEED)
    for number, words in enumerate(random.lognormal(3, 1, count).astype(int) + 1):
        (root / f"{number:05}.txt").write_text(" ".join(random.choice(WORDS, words)))


def write_tokens(root: Path, path: Path) -> tuple[np.memmap[Any, Any], list[int]]:
    """Write the tokens of all texts to one file; return it as a memory map, and where each text begins."""
    starts, position = [], 0
    with path.open("wb") as file:
        for text in sorted(root.rglob("*.txt")):
            starts.append(position)
            position += file.write(text.read_bytes() + bytes([END]))
    if not starts:
        raise SystemExit(f"{root} has no files named *.txt")
    return np.memmap(path, np.uint8, "r"), starts


class Block(nn.Module):
    """Attention within documents, and a layer for each token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.project, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layer = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor, cu_seqlens: Tensor, mask: Tensor | None) -> Tensor:
        """Return the features of each token; shapes (rows, length, width) and (sequences + 1,)."""
        rows, length, width = hidden.shape
        parts = self.project(self.norms[0](hidden)).view(rows, length, 3, self.heads, -1).unbind(2)
        if mask is None:
            q, k, v = (part.flatten(0, 1) for part in parts)
            found = flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, length, length, causal=True)
        else:
            q, k, v = (part.transpose(1, 2) for part in parts)
            found = nn.functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2)
        hidden = hidden + self.join(found.reshape(rows, length, width))
        return hidden + self.layer(self.norms[1](hidden))


class Gpt(nn.Module):
    """A GPT for rows of packed documents."""

    def __init__(self, context: int, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS, bias=False)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the mean loss of a batch; labels of -100 do not count."""
        tokens, cuts = batch["tokens"], batch["cu_seqlens"]
        rows, length = tokens.shape
        hidden = self.tokens(tokens) + self.positions(batch["position_ids"])
        # All rows one after another are one sequence for FlashAttention.
        shift = length * torch.arange(rows, dtype=torch.int32, device=cuts.device)
        cu_seqlens, mask = (cuts + shift[:, None]).flatten(), None
        if flash_attn_varlen_func is None or not (tokens.is_cuda and torch.is_autocast_enabled()):
            place = torch.arange(length, dtype=torch.int32, device=cuts.device).expand(rows, -1)
            document = torch.searchsorted(cuts, place.contiguous(), right=True)
            mask = (document[:, :, None] == document[:, None, :]).tril()[:, None]
        for block in self.blocks:
            hidden = block(hidden, cu_seqlens, mask)
        scores = self.head(self.norm(hidden))
        return nn.functional.cross_entropy(scores.flatten(0, 1).float(), batch["labels"].flatten())


def save(path: Path, **parts: Any) -> None:
    """Write a checkpoint so that a crash leaves the old one or the new one."""
    fresh = path.with_name(f"{path.name}.new")
    torch.save(parts, fresh)
    fresh.replace(path)


def run(root: Path, folder: Path, options: argparse.Namespace) -> None:
    """Pack the documents, train, and save a checkpoint after each epoch on request."""
    tokens, starts = write_tokens(root, folder / "tokens.bin")
    rows = PackedSequences(tokens, options.length, documents=starts)
    print(rows)
    loader = DataLoader(
        rows,
        batch_size=options.batch,
        shuffle=True,
        seed=SEED,
        num_workers=options.workers,
        output="torch",
        transforms=[Cast("tokens", "int64")],
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(SEED)
    model = Gpt(options.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    first = 0
    if options.resume is not None:
        checkpoint = torch.load(options.resume, weights_only=True, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["loader"])
        first = checkpoint["loader"]["epoch"]
    for epoch in range(first, options.epochs):
        losses, begun = [], perf_counter()
        for batch in islice(loader, options.stop_after):
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = model(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if losses:  # none, if the checkpoint was saved behind the epoch's last batch
            rate = len(losses) * options.batch * options.length / (perf_counter() - begun)
            print(f"epoch {epoch}: loss {float(torch.stack(losses).mean()):.3f}, {rate:,.0f} tokens/s")
        if options.checkpoint is not None:
            state = loader.state_dict()
            save(
                options.checkpoint,
                model=model.state_dict(),
                optimizer=optimizer.state_dict(),
                loader=state,
            )
        if options.stop_after:
            break


def main() -> None:
    """Read the options, make documents if asked, and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, nargs="?", help="folder with *.txt, also in folders within it")
    parser.add_argument("--made", type=int, help="train on this many documents made for it")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4, help="rows per batch (default: 4)")
    parser.add_argument("--length", type=int, default=256, help="tokens per row (default: 256)")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--stop-after", type=int, help="stop after this many steps")
    parser.add_argument("--checkpoint", type=Path, help="file for the model and the loader's state")
    parser.add_argument("--resume", type=Path, help="checkpoint to resume from")
    options = parser.parse_args()
    if options.stop_after is not None and options.stop_after < 1:
        parser.error(f"--stop-after must be 1 or more, got {options.stop_after}")
    if options.root is None and options.made is None:
        parser.error("pass a folder of text files, or --made 200")
    with tempfile.TemporaryDirectory() as folder:
        root = options.root
        if options.made is not None:
            root = Path(folder) / "texts"
            root.mkdir()
            make_texts(root, options.made)
        run(root, Path(folder), options)


if __name__ == "__main__":
    main()
