"""The usual face dataset: `__getitem__` decodes an image or video frame, runs MTCNN and crops the face.

This is the raw side of the demo's comparison, with OpenCV and the detector of facenet-pytorch.
"""

from pathlib import Path
from typing import Any

import cv2
import torch
from facenet_pytorch import MTCNN


class RawFaces(torch.utils.data.Dataset):
    """Largest faces of images and of every n-th video frame; the label is the folder.

    Parameters
    ----------
    root : Path
        One folder per class.
    every : int
    size : int
        Side of the crop in pixels.
    """

    def __init__(self, root: Path, every: int, size: int) -> None:
        self.size = size
        self.classes = sorted(path.name for path in root.iterdir() if path.is_dir())
        self.entries: list[tuple[Path, int | None, int]] = []
        for label, name in enumerate(self.classes):
            for path in sorted((root / name).iterdir()):
                if path.suffix == ".mp4":
                    frames = int(cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT))
                    self.entries += [(path, frame, label) for frame in range(0, frames, every)]
                else:
                    self.entries.append((path, None, label))
        self.mtcnn: MTCNN | None = None

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, frame, label = self.entries[index]
        if frame is None:
            image = cv2.imread(str(path))
        else:
            video = cv2.VideoCapture(str(path))
            video.set(cv2.CAP_PROP_POS_FRAMES, frame)
            _, image = video.read()
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        if self.mtcnn is None:  # once per worker
            torch.set_num_threads(1)
            self.mtcnn = MTCNN(image_size=self.size, margin=0, post_process=False)
        face = self.mtcnn(image)
        if face is None:
            face = torch.zeros(3, self.size, self.size)
        return {"image": face.to(torch.uint8), "label": label}
