"""When does a request read too little? Watches the attention mass that selection is estimated to miss.

The estimate comes free with the scores. As a running mean it tells whether the budget suits the context; single steps
it cannot judge, and neither can the entropy of the attention, which is smaller on failures, not larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

DOUBLE_ABOVE = 0.10
DENSE_ABOVE = 0.20
CALM_BELOW = 0.05  # back to the planned budget: well under DOUBLE_ABOVE, so that it does not flap
_DECAY = 1.0 / 32.0  # of the running mean, per step
_WARM_STEPS = 8  # steps before the mean is trusted


class Level(Enum):
    """How a request is read. `factor` multiplies its budget."""

    PLANNED = 1.0
    DOUBLED = 2.0
    DENSE = math.inf

    @property
    def factor(self) -> float:
        return self.value


@dataclass
class Guard:
    """The state of one request.

    on_switch : called with the new level and the reason, `missed_mass`, `calm`, `nan`, `error` or `length`, at every
        change of level; that is what metrics count.
    """

    on_switch: Callable[[Level, str], None] = lambda level, reason: None
    level: Level = Level.PLANNED
    missed_mass: float = 0.0  # running mean
    steps: int = 0

    @property
    def factor(self) -> float:
        return self.level.factor

    def observe(self, missed_mass: float) -> Level:
        """One decode step's estimate, averaged over sparse layers and kv heads; returns the level of the next step."""
        if self.level is Level.DENSE:
            return self.level
        if math.isnan(missed_mass):
            return self.trip("nan")
        self.steps += 1
        weight = max(_DECAY, 1.0 / self.steps)
        self.missed_mass += weight * (missed_mass - self.missed_mass)
        if self.steps >= _WARM_STEPS:
            self._judge()
        return self.level

    def trip(self, reason: str) -> Level:
        """Read all from now on: a failure that no budget mends (`nan`, `error`, `length`)."""
        self._switch(Level.DENSE, reason)
        return self.level

    def _judge(self) -> None:
        if self.missed_mass > DENSE_ABOVE:
            self._switch(Level.DENSE, "missed_mass")
        elif self.missed_mass > DOUBLE_ABOVE and self.level is Level.PLANNED:
            self._switch(Level.DOUBLED, "missed_mass")
        elif self.missed_mass < CALM_BELOW and self.level is Level.DOUBLED:
            self._switch(Level.PLANNED, "calm")

    def _switch(self, level: Level, reason: str) -> None:
        if level is self.level:
            return
        self.level = level
        self.steps, self.missed_mass = 0, 0.0  # the mean of another budget says nothing about this one
        self.on_switch(level, reason)
