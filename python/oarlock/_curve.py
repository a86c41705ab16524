"""The curve of a run as a picture in SVG, of as many points as a reader sees."""

from __future__ import annotations

import math
from html import escape
from typing import Callable, List, Optional, Sequence, Tuple

from ._record import Log

Point = Tuple[float, float]

#: More points than a picture has columns; at twice as many every second one goes.
POINTS = 1000

WIDTH, HEIGHT = 640.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 60.0, 34.0, 34.0

#: Colors that are told apart also by people who see few (Okabe and Ito).
LOSS, EVALUATION, RATE = "#0072b2", "#d55e00", "#009e73"


class Points:
    """Points in the order of their steps, of which only so many are kept that they fit a picture."""

    def __init__(self) -> None:
        self.points: List[Point] = []
        self._every = 1
        self._n = 0

    def add(self, x: float, y: float) -> None:
        """Adds a point. A run that goes back to a checkpoint takes the later ones back."""
        if not math.isfinite(y):
            return
        while self.points and self.points[-1][0] >= x:
            self.points.pop()
        if self._n % self._every == 0:
            self.points.append((x, y))
            if len(self.points) >= 2 * POINTS:
                self.points = self.points[::2]
                self._every *= 2
        self._n += 1


class Curve:
    """What is drawn of a run: its loss, the losses of its evaluations, and its learning rate."""

    def __init__(self) -> None:
        self.loss, self.evaluation, self.rate = Points(), Points(), Points()
        self.last: Optional[Log] = None

    def add(self, record: Log) -> None:
        """Adds a record."""
        step = float(record["step"])
        if "loss" in record:
            self.loss.add(step, record["loss"])
            self.last = record
        if "lr" in record:
            self.rate.add(step, record["lr"])
        if "eval_loss" in record:
            self.evaluation.add(step, record["eval_loss"])

    def svg(self, state: str) -> str:
        """The picture, with a line of text about the run."""
        losses = self.loss.points + self.evaluation.points
        if not losses:
            return f'<div class="oarlock">{escape(state)}</div>'
        total = float(self.last["total_steps"]) if self.last is not None else 0.0
        steps = Axis(0.0, max([total, *(x for x, _ in losses)]), LEFT, WIDTH - RIGHT)
        values = Axis.around([y for _, y in losses], HEIGHT - BOTTOM, TOP)
        rates = Axis(0.0, max([y for _, y in self.rate.points], default=0.0), HEIGHT - BOTTOM, TOP)
        parts = [
            f'<svg class="oarlock" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" '
            f'width="{WIDTH:g}" height="{HEIGHT:g}" style="max-width:100%" role="img" aria-label="{escape(state, quote=True)}" '
            'font-family="system-ui, sans-serif" font-size="11" fill="currentColor">'
        ]
        for value in values.ticks():
            y = values.at(value)
            parts.append(line((LEFT, y), (WIDTH - RIGHT, y), "currentColor", 0.15))
            parts.append(text(LEFT - 6, y + 4, f"{value:g}", "end"))
        for step in steps.ticks():
            parts.append(text(steps.at(step), HEIGHT - BOTTOM + 16, f"{step:g}", "middle"))
        parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "step", "middle"))
        if self.rate.points and rates.high > 0:
            parts.append(path(self.rate.points, steps.at, rates.at, RATE, 1.0, 0.7))
            parts.append(text(WIDTH - RIGHT + 6, TOP + 4, f"{rates.high:.1e}", "start", RATE))
        parts.append(path(self.loss.points, steps.at, values.at, LOSS, 1.8, 1.0))
        for x, y in self.evaluation.points:
            parts.append(f'<circle cx="{steps.at(x):.1f}" cy="{values.at(y):.1f}" r="3.5" fill="{EVALUATION}"/>')
        parts.append(text(LEFT, 14, state, "start"))
        names = [("loss", LOSS, self.loss), ("evaluation", EVALUATION, self.evaluation), ("learning rate", RATE, self.rate)]
        at = LEFT
        for name, color, points in names:
            if points.points:
                parts.append(text(at, 28, name, "start", color))
                at += 8.0 * len(name) + 12
        parts.append("</svg>")
        return "".join(parts)


class Axis:
    """Numbers on a line of the picture."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self.low, self.high = low, high if high > low else low + 1.0
        self._begin, self._end = begin, end

    @classmethod
    def around(cls, values: Sequence[float], begin: float, end: float) -> Axis:
        """From a little below the least value to a little above the largest."""
        low, high = min(values), max(values)
        room = (high - low) * 0.05 or 0.5
        return cls(low - room, high + room, begin, end)

    def at(self, value: float) -> float:
        """Where a value lies."""
        return self._begin + (value - self.low) / (self.high - self.low) * (self._end - self._begin)

    def ticks(self) -> List[float]:
        """Some round values."""
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        while (self.high - self.low) / step > 6:
            step *= 2 if (self.high - self.low) / step <= 12 else 2.5
        first = math.ceil(self.low / step)
        n = int((self.high - first * step) / step + 1e-9) + 1
        return [round((first + index) * step, 12) for index in range(n)]


def path(
    points: Sequence[Point],
    x: Callable[[float], float],
    y: Callable[[float], float],
    color: str,
    width: float,
    opacity: float,
) -> str:
    """A line through points."""
    places = " ".join(f"{x(one):.1f},{y(other):.1f}" for one, other in points)
    return f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="{width:g}" stroke-opacity="{opacity:g}"/>'


def line(begin: Point, end: Point, color: str, opacity: float) -> str:
    """A straight line."""
    return (
        f'<line x1="{begin[0]:.1f}" y1="{begin[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="{color}" stroke-opacity="{opacity:g}"/>'
    )


def text(x: float, y: float, words: str, anchor: str, color: str = "currentColor") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(words)}</text>'
