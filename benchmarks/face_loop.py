"""The loop that people write today to cut the faces out of videos, as one worker process.

    python benchmarks/face_loop.py OUT EVERY VIDEO...

OpenCV reads every frame; each sampled one goes through facenet-pytorch's MTCNN, and each face of 40 px and more with a
probability of 0.95 and more is cut out with a margin of 0.3 of the box's longer side, resized to 224 x 224 and written
as JPEG of quality 95. One math thread. It prints, as JSON, the frames, the faces, the seconds that it took to load, and
the seconds and CPU seconds of each stage.
"""

import json
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = time.perf_counter()

import cv2  # noqa: E402 -- the clock starts before the imports
import torch  # noqa: E402
from facenet_pytorch import MTCNN  # noqa: E402

SIZE, MARGIN, MIN_FACE, MIN_SCORE, QUALITY = 224, 0.3, 40, 0.95, 95

seconds = dict.fromkeys(("decode", "detect", "crop", "encode"), 0.0)
cpu_seconds = dict(seconds)


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Add what the block takes to a stage."""
    start, cpu_start = time.perf_counter(), time.process_time()
    yield
    seconds[stage] += time.perf_counter() - start
    cpu_seconds[stage] += time.process_time() - cpu_start


def main() -> None:
    """Cut all faces of the videos."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    out, every = Path(sys.argv[1]), int(sys.argv[2])
    mtcnn = MTCNN(keep_all=True)
    load_s = time.perf_counter() - START_S
    frames = faces = 0
    for path in sys.argv[3:]:
        video, index = cv2.VideoCapture(path), -1
        folder = out / Path(path).stem
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            index += 1
            with timed("decode"):
                there, bgr = video.read()
            if not there:
                break
            if index % every:
                continue
            frames += 1
            with timed("detect"):
                boxes, scores, points = mtcnn.detect(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), landmarks=True)
            found = [] if boxes is None else zip(boxes, scores, points, strict=True)
            for number, ((x0, y0, x1, y1), score, _points) in enumerate(found):
                if score < MIN_SCORE or min(x1 - x0, y1 - y0) < MIN_FACE:
                    continue
                faces += 1
                with timed("crop"):
                    half = max(x1 - x0, y1 - y0) * (0.5 + MARGIN)
                    middle_x, middle_y = (x0 + x1) / 2, (y0 + y1) / 2
                    left, top = max(int(middle_x - half), 0), max(int(middle_y - half), 0)
                    crop = bgr[top : int(middle_y + half), left : int(middle_x + half)]
                    crop = cv2.resize(crop, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
                with timed("encode"):
                    cv2.imwrite(str(folder / f"{index:06d}-{number}.jpg"), crop, [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    print(
        json.dumps({"frames": frames, "faces": faces, "load_s": load_s, "seconds": seconds, "cpu_seconds": cpu_seconds})
    )


if __name__ == "__main__":
    main()
