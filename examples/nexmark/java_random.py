"""The random numbers of Java's ``java.util.Random``, by its published algorithm.

It is a linear congruential generator of 48 bits: ``x' = (x * 0x5DEECE66D + 0xB) mod 2**48``; a draw
of k bits is the upper k bits of x'. Java's documentation fixes the sequence, so that a seed gives
the same numbers in every language and for ever.
"""

from __future__ import annotations

MULTIPLIER = 0x5DEECE66D
INCREMENT = 0xB
MASK = (1 << 48) - 1


class JavaRandom:
    """A generator that starts from `seed`, as ``new java.util.Random(seed)`` does."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = (seed ^ MULTIPLIER) & MASK

    def next_bits(self, count: int) -> int:
        """A draw of `count` bits, 1 to 32, as a non-negative number."""
        self._state = state = (self._state * MULTIPLIER + INCREMENT) & MASK
        return state >> (48 - count)

    def next_31_bits(self, times: int) -> list[int]:
        """`times` draws of 31 bits, faster than by single calls."""
        state, draws = self._state, []
        for _ in range(times):
            state = (state * MULTIPLIER + INCREMENT) & MASK
            draws.append(state >> 17)
        self._state = state
        return draws

    def next_int32(self) -> int:
        """``nextInt()``: any signed number of 32 bits."""
        bits = self.next_bits(32)
        return bits - (1 << 32) if bits >> 31 else bits

    def next_int(self, bound: int) -> int:
        """``nextInt(bound)``: a number from 0 to `bound` - 1; `bound` is 1 to 2**31 - 1.

        For a power of two it is the upper bits of the draw. Otherwise it is the remainder; the few
        draws at the upper end that would make small remainders more likely are discarded.
        """
        assert 0 < bound < 1 << 31, bound
        self._state = state = (self._state * MULTIPLIER + INCREMENT) & MASK
        bits = state >> 17
        if bound & (bound - 1) == 0:
            return (bound * bits) >> 31
        value = bits % bound
        while bits - value + bound - 1 >= 1 << 31:
            bits = self.next_bits(31)
            value = bits % bound
        return value

    def next_double(self) -> float:
        """``nextDouble()``: 53 bits as a number from 0 to below 1."""
        return ((self.next_bits(26) << 27) + self.next_bits(27)) / (1 << 53)
