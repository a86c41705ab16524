"""How far lists of numbers are apart. `max` passes over NaN, and `zip` over what only one list has: here both are errors."""
import math


def largest(values):
    """The largest size of some numbers, all of which must be finite."""
    values = list(values)
    odd = [at for at, value in enumerate(values) if not math.isfinite(value)]
    if odd:
        raise ValueError(f"number {odd[0]} of {len(values)} is {values[odd[0]]}")
    return max((abs(value) for value in values), default=0.0)


def differences(ours, theirs):
    """The distance of each pair of numbers, all of which must be finite."""
    ours, theirs = list(ours), list(theirs)
    largest(ours), largest(theirs)
    return [abs(a - b) for a, b in zip(ours, theirs, strict=True)]


def largest_difference(ours, theirs):
    """The largest distance of two numbers at the same place."""
    return largest(differences(ours, theirs))
