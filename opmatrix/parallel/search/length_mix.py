"""Sequences of several lengths: the share of steps that have each. All sequences of one step are of one length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd, inf
from typing import NamedTuple

from formats.core.errors import InputError
from opmatrix.parallel.cost.prediction import Prediction
from opmatrix.parallel.cost.step_parts import PartSeconds, add_parts, scale_parts

SHARE_ERROR = 1e-6  # by which shares may miss 1, as decimals that are rounded do
MOST_LENGTHS = 16


class LengthMix(NamedTuple):
    """Lengths of sequences, the shortest first, with the share of steps that have each."""

    shares: tuple[tuple[int, float], ...]  # (tokens of a sequence, share of steps); shares add up to 1

    @property
    def longest(self) -> int:
        return self.shares[-1][0]

    @property
    def mean(self) -> float:
        """The mean tokens of a sequence."""
        return sum(share * tokens for tokens, share in self.shares)

    @property
    def divided(self) -> int:
        """The tokens that ranks must divide, so that they divide each length."""
        return gcd(*(tokens for tokens, _ in self.shares))

    def __str__(self) -> str:
        if len(self.shares) == 1:
            return str(self.longest)
        return ", ".join(f"{tokens} ({100 * share:.4g} %)" for tokens, share in self.shares)


def mix_lengths(seq: int | Mapping[int, float]) -> LengthMix:
    """Return the mix of one length, or of several by their shares. Raises InputError for shares that are none, or that
    do not add up to 1."""
    lengths = seq if isinstance(seq, Mapping) else {seq: 1.0}
    for tokens, share in lengths.items():
        if not 0 < share < inf:
            raise InputError(f"--seq {tokens}:{share:g}: a share of steps is more than 0")
    if not 1 <= len(lengths) <= MOST_LENGTHS:
        raise InputError(f"--seq: {len(lengths)} lengths: give from 1 to {MOST_LENGTHS}")
    if abs((total := sum(lengths.values())) - 1) > SHARE_ERROR:
        shares = " + ".join(f"{share:g}" for share in lengths.values())
        raise InputError(
            f"--seq: the shares {shares} add up to {total:g}: give shares of 1, such as 8192:0.7,32768:0.3"
        )
    return LengthMix(tuple(sorted((tokens, share / total) for tokens, share in lengths.items())))


def read_lengths(text: str) -> int | dict[int, float]:
    """Read a number of tokens, or lengths with shares, such as "8192:0.7,32768:0.3". Raises InputError for anything
    else, and for a length that is stated twice."""
    if text.strip().isdecimal():
        return check_length(text, text)
    lengths: dict[int, float] = {}
    for part in text.split(","):
        length, colon, share = part.partition(":")
        tokens = check_length(length, text)
        if not colon:
            raise InputError(f"--seq {text}: {tokens} has no share of steps: give {tokens}:SHARE")
        if tokens in lengths:
            raise InputError(f"--seq {text}: {tokens} tokens have two shares: give one")
        try:
            lengths[tokens] = float(share)
        except ValueError:
            raise InputError(f"--seq {text}: {share!r} is no share of steps: give a number, such as 0.3") from None
    return lengths


def check_length(length: str, text: str) -> int:
    """Return a number of tokens. Raises InputError for any other text."""
    if length.strip().isdecimal() and int(length) > 0:
        return int(length)
    raise InputError(f"--seq {text}: {length!r} is no number of tokens: give 8192, or 8192:0.7,32768:0.3")


def mix_predictions(mix: LengthMix, predictions: Sequence[Prediction]) -> Prediction:
    """Return the mean seconds of steps of several lengths by their shares, part by part, and the memory and setting of
    the longest, which needs the most."""
    parts: PartSeconds = add_parts(
        *(scale_parts(step.seconds, share) for step, (_, share) in zip(predictions, mix.shares, strict=True))
    )
    return replace(predictions[-1], seconds=parts)
