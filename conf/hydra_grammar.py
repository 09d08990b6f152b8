"""Hydra's grammar of overrides: the only file that imports its parser, which Hydra does not document.

The names are those of hydra-core 1.3. tests/conf/test_overrides.py fails when one is gone.
"""

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, OverrideType, RangeSweep, ValueType

__all__ = ["IntervalSweep", "Override", "OverrideType", "RangeSweep", "ValueType", "parse"]


def parse(arguments: list[str]) -> list[Override]:
    """Parse overrides as Hydra will.

    Raises:
        HydraException: one of them is not in its grammar.
    """
    return OverridesParser.create().parse_overrides(arguments)
