"""Hydra's parser of overrides (hydra-core 1.3). Hydra does not document it, so only this file imports it."""

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, OverrideType, RangeSweep, Sweep, ValueType

__all__ = ["IntervalSweep", "Override", "OverrideType", "RangeSweep", "Sweep", "ValueType", "parse"]


def parse(arguments: list[str]) -> list[Override]:
    """Parse overrides as Hydra does; raise `HydraException` if one is not in its grammar."""
    return OverridesParser.create().parse_overrides(arguments)
