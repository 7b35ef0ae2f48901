"""The step that turns frames into face samples, and what only it uses."""
