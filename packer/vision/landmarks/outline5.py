"""The numbers of `packer.vision.landmarks.hull.estimate_outline`: how five points move the outline of 68.

They were fitted by `benchmarks/hull_template.py` of commit 01cfbf4a. The fit is a ridge regression from MTCNN's
five points to the jaw and the eyebrows of MediaPipe's face mesh (Apache-2.0), on 121 faces of six photographs and a
video, with ten copies of each mesh turned by up to 0.6 rad to the side and 0.35 rad up or down. Every source has the
same weight, and the meshes are mirrored too, so that the result is symmetric. The meshes were found in a picture 1.6
boxes wide around the five points, not in the picture of `packer.vision.landmarks.mesh`, which depends on these numbers.
dlib's predictor, whose training data excludes commercial use, has no part in them.

The table shows intersection over union of the convex hulls, with the face's own source left out of the fit:

===============================  =====================  =====================
estimate                         dlib's 68, 136 faces   the mesh, 121 faces
===============================  =====================  =====================
this                             0.853 (p5 0.780)       0.866 (p5 0.765)
the mean shape, only placed      0.745 (p5 0.484)       0.795 (p5 0.649)
the mesh's jaw and eyebrows      0.861 (p5 0.704)       1
===============================  =====================  =====================

Integers are thousandths of the mean frame's unit (`packer.vision.landmarks.similarity`). One of each mirrored pair of
points is stored: positions 0 to 8 (jaw from the right ear to the chin) and 17 to 21 (left eyebrow, from outside) of the
hull.
"""

import numpy as np
import numpy.typing as npt

# fmt: off
# The mean outline, then what one unit of each symmetric feature adds: nose down, mouth wider, mouth down.
_SYMMETRIC = (
    (
        (-1134, -557), (-1123, -303), (-1111, -45), (-1008, 516), (-908, 749), (-787, 921), (-495, 1177),
        (-200, 1335), (0, 1358), (921, -832), (815, -914), (652, -955), (451, -936), (228, -904),
    ),
    (
        (38, -1420), (52, -1519), (52, -1535), (38, -1381), (34, -1161), (24, -902), (-1, -485),
        (-8, -163), (0, -118), (-21, -302), (-4, -95), (10, 64), (10, 203), (3, 285),
    ),
    (
        (-334, 862), (-304, 870), (-265, 842), (-213, 702), (-176, 583), (-151, 458), (-103, 356),
        (-50, 331), (0, 332), (351, 259), (355, 122), (322, 40), (252, -17), (144, -29),
    ),
    (
        (438, 67), (422, 135), (397, 188), (336, 275), (293, 286), (240, 287), (134, 279),
        (51, 250), (0, 241), (-395, -91), (-362, -107), (-307, -133), (-226, -153), (-124, -171),
    ),
)
# What one unit of each tilted feature adds: nose to the picture's right, mouth to the right, its left corner down.
_TILTED = (
    (
        (-1700, -55), (-1825, -38), (-1846, -20), (-1666, 21), (-1411, 39), (-1117, 52), (-637, 52),
        (-271, 25), (-213, 0), (-388, 52), (-141, 52), (69, 47), (252, 35), (355, 22),
    ),
    (
        (279, -422), (364, -417), (427, -412), (499, -375), (479, -339), (443, -292), (386, -185),
        (343, -74), (338, 0), (-119, 373), (-195, 343), (-243, 280), (-270, 195), (-282, 100),
    ),
    (
        (-124, -416), (-72, -415), (-15, -412), (106, -378), (150, -342), (184, -295), (232, -188),
        (272, -76), (279, 0), (-189, 345), (-211, 308), (-219, 247), (-212, 170), (-206, 85),
    ),
)
# fmt: on
_LIMITS = (
    (440, 170, 210),
    (543, 252, 147),
)  # the 99th percentile of each feature's absolute value; beyond it the fit was not tested

_EVEN = np.array(_SYMMETRIC) / 1000

MEAN_HALF: npt.NDArray[np.float64] = _EVEN[0]
"""(14, 2)."""
SYMMETRIC_HALF: npt.NDArray[np.float64] = _EVEN[1:]
"""(3, 14, 2)."""
TILTED_HALF: npt.NDArray[np.float64] = np.array(_TILTED) / 1000
"""(3, 14, 2)."""
FEATURE_LIMITS: npt.NDArray[np.float64] = np.array(_LIMITS) / 1000
"""(2, 3): of the symmetric and of the tilted features."""
