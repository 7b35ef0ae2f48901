"""The steps that turn frames into face samples or detections."""
