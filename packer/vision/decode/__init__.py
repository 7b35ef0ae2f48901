"""Decode images and videos to ``uint8 (H, W, 3)`` RGB, by rules that are the same for every file type.

`packer.vision.decode.image` decodes one image from its bytes (rules: ``docs/howto/images.md``).
`packer.vision.decode.video` streams the sampled frames of one video, and `packer.vision.decode.sampling` chooses those
frames. Nothing is imported here: Pillow, PyAV and OpenCV load with the one module that needs them.
"""
