"""Train a small network to tell sounds apart, from the spectrum of a random clip of each file.

    python examples/train_audio.py --made 120               on tones that it makes itself
    python examples/train_audio.py path/to/audio            with train/CLASS/… and val/CLASS/…

Workers read a clip of each file, a different one in each epoch, mix its channels and resample it.
torch computes the spectrum where the batch lands.

The example needs torch (a CPU build is enough) and gpuloader's extra `audio`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import Tensor, nn

from gpuloader import AudioFolder, DataLoader

SEED = 1
RATE = 8000
WAVES = {
    "pulse": lambda turns: np.sign(np.sin(turns)),
    "sine": np.sin,
    "saw": lambda turns: turns / np.pi % 2 - 1,
}


def make_audio(root: Path, count: int) -> None:
    """Write two seconds of noisy tones at several rates; a fifth of the files for validation."""
    random = np.random.default_rng(SEED)
    for number in range(count):
        name = [*WAVES][number % len(WAVES)]
        rate = int(random.choice([8000, 11025, 16000]))
        turns = 2 * np.pi * random.uniform(100, 800) * np.arange(2 * rate) / rate
        wave = 0.5 * WAVES[name](turns) + random.normal(0, 0.05, len(turns))
        folder = root / ("val" if number % 5 == 0 else "train") / name
        folder.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / f"{number}.flac", wave.clip(-1, 1), rate)


class Listener(nn.Module):
    """Convolutions over the logarithm of a spectrum, which count what there is at any time and pitch."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, classes),
        )

    def forward(self, audio: Tensor) -> Tensor:
        """Return the score of each class."""
        spectrum = torch.stft(audio, 256, 128, window=self.window, return_complex=True).abs()
        return self.layers((spectrum + 1e-3).log()[:, None])


def run(root: Path, options: argparse.Namespace) -> None:
    """Train, and count after each epoch how many files of the others are recognized."""
    shared = {"batch_size": options.batch, "num_workers": options.workers, "output": "torch"}
    stretch = {"seconds": options.seconds, "rate": RATE}
    train = DataLoader(
        AudioFolder(root / "train", **stretch), shuffle=True, seed=SEED, drop_last=True, **shared
    )
    validation = DataLoader(AudioFolder(root / "val", at=0.5, **stretch), **shared)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(SEED)
    model = Listener(len(train.dataset.classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    for epoch in range(options.epochs):
        model.train()
        losses = []
        for audio, labels in train:
            loss = nn.functional.cross_entropy(model(audio), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            right = [model(audio).argmax(1) == labels for audio, labels in validation]
        loss, part = torch.stack(losses).mean(), torch.cat(right).float().mean()
        print(f"epoch {epoch}: loss {loss:.3f}, {part:.1%} right")


def main() -> None:
    """Read the options, make files if asked, and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, nargs="?", help="folder with train/CLASS/ and val/CLASS/")
    parser.add_argument(
        "--made", type=int, help="train on this many files made for it, at least twice a batch"
    )
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a clip (default: 0.5)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rate", type=float, default=3e-3)
    options = parser.parse_args()
    if options.made is not None:
        if options.made < 2 * options.batch:
            parser.error(f"--made must be {2 * options.batch} or more for a batch, got {options.made}")
        with tempfile.TemporaryDirectory() as folder:
            make_audio(Path(folder), options.made)
            run(Path(folder), options)
    elif options.root is None:
        parser.error("pass a folder of audio, or --made 120")
    else:
        run(options.root, options)


if __name__ == "__main__":
    main()
