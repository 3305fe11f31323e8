"""What goes along with a prompt: checked before it is stored, because a node is never changed and every turn reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moryflow_sdk import ConfigError, Image


def attachments_payload(files: Sequence[Mapping[str, Any]], images: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the attachments of a prompt as its node holds them.

    :raises ConfigError: one is not what it should be.
    """
    for number, file in enumerate(files):
        if file.keys() != {"path", "text"} or not all(isinstance(value, str) for value in file.values()):
            raise ConfigError("a file is a path and a text", where=f"files[{number}]", next_step='{"path": "…", "text": "…"}')
    for number, image in enumerate(images):
        if not _is_image(image):
            said = "an image is a media type and its data in base64"
            step = '{"media_type": "image/png", "data": "…"}'
            raise ConfigError(said, where=f"images[{number}]", next_step=step)
    return {name: list(found) for name, found in (("files", files), ("images", images)) if found}


def _is_image(found: Mapping[str, Any]) -> bool:
    import base64

    try:
        image = Image(**found)
        return image.media_type.startswith("image/") and bool(base64.b64decode(image.data, validate=True))
    except (TypeError, ValueError):
        return False
