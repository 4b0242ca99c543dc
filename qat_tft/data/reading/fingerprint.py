"""A fingerprint of a panel as it was read, by which a resumed run notices that its data have changed."""

import hashlib
import json

from qat_tft.data.panel import Panel

_BLOCK = 2**18


def fingerprint(panel: Panel) -> str:
    """Digest of all rows, times, series and categories; the same whether the panel is mapped or in memory."""
    found = hashlib.blake2b(digest_size=16)
    for tensor in (panel.values, panel.static, panel.time, panel.stretches):
        for block in tensor.split(_BLOCK):
            found.update(block.contiguous().numpy().data)
    found.update(json.dumps([panel.series_ids, panel.dictionaries]).encode())
    return found.hexdigest()
