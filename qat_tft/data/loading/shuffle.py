"""A random order of many things that takes no memory: each place of it is computed when it is asked for."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ROUNDS = 6
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # the finalizer of splitmix64 (Steele, Lea and Flood, 2014)

_Words = npt.NDArray[np.uint64]


class Permutation:
    """A permutation of 0 .. count - 1; the same seed gives the same one.

    A Feistel network over the smallest even number of bits that hold ``count``. Its rounds are each undone by
    themselves, so it is one to one; a result that is too large goes through again (cycle walking; Black and Rogaway,
    "Ciphers with arbitrary finite domains", 2002).
    """

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self._half = np.uint64(max(1, -(-max(1, (count - 1).bit_length()) // 2)))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64)

    def __getitem__(self, places: Tensor) -> Tensor:
        """What stands at these places, int64 of the same length."""
        found = self._once(places.numpy().astype(np.uint64))
        while (outside := found >= self.count).any():
            found[outside] = self._once(found[outside])
        return torch.from_numpy(found.astype(np.int64))

    def _once(self, numbers: _Words) -> _Words:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (self._mixed(right ^ key) & self._mask)
        return left << self._half | right

    def _mixed(self, words: _Words) -> _Words:
        for factor, shift in zip(_MIX, (30, 27), strict=True):
            words = (words ^ words >> np.uint64(shift)) * np.uint64(factor)
        return words ^ words >> np.uint64(31)
