"""Values marked secret, as they stand where they may not be shown or stored in the clear."""

from __future__ import annotations

from typing import Literal

import attrs


@attrs.frozen
class Withheld:
    """What is left of a secret that was stored without being readable: its digest, or its sealed form."""

    mark: Literal["$digest", "$sealed"]
    text: str = attrs.field(repr=False)
