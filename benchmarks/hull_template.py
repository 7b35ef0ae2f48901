"""The origin of the numbers in `packer/vision/landmarks/outline5.py`, and how well the hull of five points fits.

    python -m benchmarks.hull_template PATH... --mesh face_landmark.tflite [--every 4] [--derive] [-o result.json]

PATH: pictures, videos, or folders of them. Each file is one source, except that all frames of a video are one. Faces
are found by MTCNN (score above .95, box of 40 px and more) and cut as the pack stage cuts them (margin .3, 224 px). The
target of the fit is the jaw and the eyebrows of MediaPipe's face mesh (Apache-2.0), so nothing is derived from dlib's
predictor, whose training data excludes commercial use; dlib's hulls only measure the result. Each source is judged by a
fit without it.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packer import Detector
from packer.vision.geometry import affine, crop
from packer.vision.landmarks.dlib68 import Dlib68
from packer.vision.landmarks.hull import _HALF, _MIRROR, features
from packer.vision.landmarks.mesh import _MARGIN as MESH_MARGIN
from packer.vision.landmarks.mesh import FaceMesh
from packer.vision.landmarks.similarity import BOX_SIDE, MEAN_FIVE, five_points, place_mean_face, unit
from shardspec.points import LAYOUTS, flip_permutation

FloatArray = NDArray[np.float64]
SIZE, MARGIN = 224, 0.3
# The mesh's vertices nearest to the jaw (0 to 16) and the eyebrows (26 to 17) of iBUG's 68 points.
# fmt: off
MESH_OUTLINE = (
    127, 234, 93, 58, 172, 136, 149, 148, 152, 377, 378, 365, 397, 288, 323, 454, 356,
    300, 293, 334, 296, 336, 107, 66, 105, 63, 70,
)
# fmt: on
RIDGE = 1e-3
TURNS = 10  # turned copies of each mesh, since few faces of a small collection are in profile
TURN, NOD, NOISE = 0.6, 0.35, 1.5  # radians to each side, and pixels of noise on the five points


@dataclass
class Face:
    """One face: its source, the five points, and the outlines found by others, in crop pixels."""

    source: str
    points: FloatArray
    mesh: FloatArray  # (468, 3)
    mesh_valid: bool
    dlib: FloatArray  # (68, 2)
    dlib_valid: bool


def pictures(paths: list[Path], every: int) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """Each picture, and each n-th frame of each video, with its file's name."""
    files = [f for path in paths for f in (sorted(path.rglob("*")) if path.is_dir() else [path]) if f.is_file()]
    for file in files:
        if file.suffix.lower() in (".mp4", ".mov", ".avi", ".mkv"):
            with av.open(str(file)) as container:
                for at, frame in enumerate(container.decode(video=0)):
                    if at % every == 0:
                        yield file.name, frame.to_ndarray(format="rgb24")
        elif file.suffix.lower() in (".jpg", ".jpeg", ".png"):
            yield file.name, np.asarray(Image.open(file).convert("RGB"))


def faces(paths: list[Path], every: int, mesh_file: Path) -> list[Face]:
    """All faces, with every landmark kind."""
    detector, mesh, dlib68 = Detector.dataset(), FaceMesh(mesh_file), Dlib68()
    out = []
    for source, picture in pictures(paths, every):
        found = detector.detect([picture])
        for box, score, points in zip(found.boxes, found.scores, found.points, strict=True):
            if score < 0.95 or max(box[2] - box[0], box[3] - box[1]) < 40:
                continue
            matrix = crop.crop_matrix(box, MARGIN, SIZE)
            image, own = crop.cut(picture, matrix, SIZE), affine.apply(matrix, points)
            flat, mesh_valid = mesh(image, own)
            points68, dlib_valid = dlib68(image, own)
            depth = mesh._request.get_output_tensor(mesh._points).data.reshape(-1, 3)[:, 2] * mesh_scale(
                own, mesh._size
            )
            out.append(
                Face(source, own, np.column_stack([flat, depth]), mesh_valid, points68.astype(float), dlib_valid)
            )
    return out


def mesh_scale(points: FloatArray, size: int) -> float:
    """Crop pixels per pixel of the mesh's own picture."""
    return MESH_MARGIN * BOX_SIDE * unit(place_mean_face(points)) / size


def to_mean(points5: FloatArray, points: FloatArray) -> FloatArray:
    """Points of the crop in the mean frame."""
    return affine.apply(affine.invert(place_mean_face(points5)), points)


def samples(chosen: list[Face], rng: np.random.Generator) -> Iterator[tuple[FloatArray, FloatArray, float]]:
    """Five points and outline of each face as found, and of its mesh turned about."""
    count = {face.source: sum(other.source == face.source for other in chosen) for face in chosen}
    for face in chosen:
        weight = 1 / count[face.source]
        yield face.points, face.mesh[list(MESH_OUTLINE), :2], weight
        centred = face.mesh - face.mesh.mean(axis=0)
        for _ in range(TURNS):
            turn, nod = rng.uniform(-TURN, TURN), rng.uniform(-NOD, NOD)
            y = np.array([[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]])
            x = np.array([[1, 0, 0], [0, np.cos(nod), -np.sin(nod)], [0, np.sin(nod), np.cos(nod)]])
            flat = (centred @ (x @ y).T)[:, :2]
            five = five_points(flat, "468") + rng.normal(0, NOISE, (5, 2))
            yield five, flat[list(MESH_OUTLINE)], weight / TURNS


def fit(chosen: list[Face], seed: int = 0) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Ridge regression of the symmetric and of the tilted part: (1 + 3, 27, 2), (3, 27, 2), limits (2, 3)."""
    rows = [
        (*features(five, place_mean_face(five)), to_mean(five, outline), weight)
        for five, outline, weight in samples(chosen, np.random.default_rng(seed))
    ]
    symmetric, tilted, outlines, weights = (np.array(column) for column in zip(*rows, strict=True))
    mirrored = (outlines * (-1, 1))[:, _MIRROR]
    w = weights[:, None]
    columns = np.column_stack([np.ones(len(symmetric)), symmetric])
    ridge = RIDGE * weights.sum()
    even = np.linalg.solve(
        columns.T @ (w * columns) + ridge * np.diag([0, 1, 1, 1]),
        columns.T @ (w * ((outlines + mirrored) / 2).reshape(len(w), -1)),
    )
    odd = np.linalg.solve(
        tilted.T @ (w * tilted) + ridge * np.eye(3), tilted.T @ (w * ((outlines - mirrored) / 2).reshape(len(w), -1))
    )
    limits = np.percentile(np.abs(np.stack([symmetric, tilted])), 99, axis=1)
    return even.reshape(4, -1, 2), odd.reshape(3, -1, 2), limits


def predict(
    model: tuple[FloatArray, FloatArray, FloatArray], points5: FloatArray, mean_only: bool = False
) -> FloatArray:
    """The outline that a fit gives, or its mean shape only placed on the points."""
    even, odd, limits = model
    placed = place_mean_face(points5)
    symmetric, tilted = features(points5, placed)
    symmetric, tilted = np.clip(symmetric, -limits[0], limits[0]), np.clip(tilted, -limits[1], limits[1])
    moved = even[0] + (0 if mean_only else np.tensordot(symmetric, even[1:], 1) + np.tensordot(tilted, odd, 1))
    return affine.apply(placed, moved)


def overlap(one: FloatArray, other: FloatArray) -> float:
    """Intersection over union of two convex hulls, drawn on a canvas of twice the crop."""
    masks = []
    for points in (one, other):
        mask = np.zeros((2 * SIZE, 2 * SIZE), np.uint8)
        fixed = np.rint((points + SIZE / 2) * 16).astype(np.int32)
        masks.append(cv2.fillConvexPoly(mask, cv2.convexHull(fixed), 1, shift=4) > 0)
    return float((masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum())


def agreement(all_faces: list[Face]) -> dict[str, dict[str, float]]:
    """IoU with the hulls of dlib and of the mesh, each source judged by a fit without it."""
    jaw = list(LAYOUTS["68"].outline)
    results: dict[str, list[float]] = {}
    for source in sorted({face.source for face in all_faces}):
        model = fit([face for face in all_faces if face.source != source and face.mesh_valid])
        for face in (face for face in all_faces if face.source == source):
            guesses = {"template": predict(model, face.points), "mean shape": predict(model, face.points, True)}
            truths = {
                "dlib 68": (face.dlib[jaw], face.dlib_valid),
                "mesh": (face.mesh[list(MESH_OUTLINE), :2], face.mesh_valid),
            }
            for truth, (outline, valid) in truths.items():
                for guess, found in guesses.items():
                    if valid:
                        results.setdefault(f"{guess} / {truth}", []).append(overlap(found, outline))
            if face.dlib_valid and face.mesh_valid:
                results.setdefault("mesh / dlib 68", []).append(overlap(truths["mesh"][0], truths["dlib 68"][0]))
    return {
        name: {"faces": len(v), "mean": float(np.mean(v)), "p5": float(np.percentile(v, 5))}
        for name, v in results.items()
    }


def mean_five(all_faces: list[Face]) -> FloatArray:
    """Generalized Procrustes mean of the five points, symmetric, the eyes one unit apart."""
    mean = MEAN_FIVE.copy()
    for _ in range(20):
        aligned = [affine.apply(affine.invert(_place(mean, face.points)), face.points) for face in all_faces]
        mean = np.mean(aligned, axis=0)
        mean = (mean + (mean * (-1, 1))[flip_permutation("5")]) / 2
        mean = (mean - mean.mean(axis=0)) / np.linalg.norm(mean[1] - mean[0])
    return mean


def _place(mean: FloatArray, points: FloatArray) -> FloatArray:
    z, w = mean @ (1, 1j), points @ (1, 1j)
    factor = (np.conj(z - z.mean()) * (w - w.mean())).sum() / (np.abs(z - z.mean()) ** 2).sum()
    shift = w.mean() - factor * z.mean()
    return np.array([[factor.real, -factor.imag, shift.real], [factor.imag, factor.real, shift.imag]])


def region_boxes(all_faces: list[Face]) -> dict[str, list[float]]:
    """Median boxes of the mesh's regions in the mean frame, without margin."""
    out = {}
    for name, indices in LAYOUTS["468"].regions.items():
        own = [to_mean(face.points, face.mesh[list(indices), :2]) for face in all_faces if face.mesh_valid]
        out[name] = np.median([np.r_[p.min(axis=0), p.max(axis=0)] for p in own], axis=0).round(3).tolist()
    return out


def table(model: tuple[FloatArray, FloatArray, FloatArray]) -> str:
    """The numbers of `outline5.py`, in thousandths."""
    even, odd, limits = model
    blocks = {"_SYMMETRIC": even[:, _HALF], "_TILTED": odd[:, _HALF], "_LIMITS": limits}
    return "\n".join(f"{name} = {np.rint(values * 1000).astype(int).tolist()}" for name, values in blocks.items())


def main() -> None:
    """Find the faces, judge the fit, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--mesh", type=Path, required=True, help="face_landmark.tflite")
    parser.add_argument("--every", type=int, default=4, help="of a video, every n-th frame")
    parser.add_argument("--derive", action="store_true", help="print the table fitted to all faces")
    parser.add_argument("-o", "--output", type=Path, help="JSON file for the figures")
    options = parser.parse_args()
    found = faces(options.paths, options.every, options.mesh)
    result: dict[str, Any] = {
        "faces": len(found),
        "sources": len({face.source for face in found}),
        "dlib_valid": sum(face.dlib_valid for face in found),
        "mesh_valid": sum(face.mesh_valid for face in found),
        "box_side": float(np.median([SIZE / (1 + 2 * MARGIN) / unit(place_mean_face(face.points)) for face in found])),
        "mean_five": mean_five(found).round(4).tolist(),
        "regions": region_boxes(found),
        "iou": agreement(found),
    }
    print(json.dumps(result, indent=2))
    if options.derive:
        print(table(fit([face for face in found if face.mesh_valid])))
    if options.output:
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
