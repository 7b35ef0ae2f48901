"""Train a small network to tell words apart by the mouth and the sound.

    python examples/make_talking.py videos/
    packer build videos/ lips/ --preset faces --crop mouth --choose track --smooth 13 --fill 10 \
        --resample-fps 25 --audio 16000 --label-from folder
    python examples/train_lips.py lips/

The last line printed is JSON: loss and accuracy of each epoch.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import nn

from readers import Loader, open_dataset


class LipReader(nn.Module):
    """Features of each frame from its image and its sound, and a GRU over the frames."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.image = nn.Sequential(
            nn.AvgPool2d(2), nn.Conv2d(1, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.sound = nn.Sequential(nn.Conv1d(1, 16, 80, 16), nn.ReLU(), nn.AdaptiveMaxPool1d(2), nn.Flatten())
        self.time = nn.GRU(64 + 32, 32, batch_first=True)
        self.words = nn.Linear(32, words)

    def forward(self, image: torch.Tensor, audio: torch.Tensor) -> torch.Tensor:
        """Compute the logits of the words.

        Parameters
        ----------
        image : (B, T, 3, H, W), uint8
        audio : (B, T * n), int16
            The n samples of each of the T frames.
        """
        clips, frames = image.shape[:2]
        grey = image.flatten(0, 1).float().mean(1, keepdim=True) / 255
        sound = audio.float().reshape(clips * frames, 1, -1) / 2**15
        features = torch.cat([self.image(grey), self.sound(sound)], 1)
        _, last = self.time(features.reshape(clips, frames, -1))
        return self.words(last[0])


def main() -> None:
    """Train, and print loss and accuracy of each epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--length", type=int, default=36, help="frames of a clip (default: 36)")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=6)
    options = parser.parse_args()
    frames = open_dataset(options.dataset, fields=["image", "audio", "label"])
    clips = frames.clips(options.length)
    loader = Loader(clips, options.batch_size, seed=0)
    torch.manual_seed(0)
    model = LipReader(len(frames.classes))
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    results = []
    for epoch in range(options.epochs):
        loader.set_epoch(epoch)
        total, right, seen = 0.0, 0, 0
        for batch in loader:
            logits = model(batch["image"], batch["audio"])
            loss = nn.functional.cross_entropy(logits, batch["label"])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(logits)
            right += int((logits.argmax(1) == batch["label"]).sum())
            seen += len(logits)
        results.append({"clips": seen, "loss": total / seen, "accuracy": right / seen})
        print(f"epoch {epoch}: {seen} clips, loss {total / seen:.3f}, {100 * right / seen:.0f} % right")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
