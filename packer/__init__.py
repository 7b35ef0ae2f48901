"""The pack stage: raw images and videos, preprocessed once and in parallel, into a packed dataset.

Names resolve on first use, so that ``import packer`` loads neither torch nor a format library.
"""
