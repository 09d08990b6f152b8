"""Parse overrides with Hydra's own parser (hydra-core 1.3), which is undocumented, so only this file imports it."""

import re
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    IntervalSweep,
    Override,
    OverrideType,
    Quote,
    QuotedString,
    RangeSweep,
    Sweep,
    ValueType,
)  # fmt: skip

from base.options import spell

__all__ = ["IntervalSweep", "Override", "OverrideType", "RangeSweep", "Sweep", "ValueType", "parse", "quoted"]


def parse(arguments: list[str]) -> list[Override]:
    """Parse `key=value` arguments, or raise a `HydraException`."""
    return OverridesParser.create().parse_overrides(arguments)


def quoted(value: Any) -> str:
    """Return the string that Hydra's grammar reads as `value`."""
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w./-]*", value):
        return QuotedString(value, Quote.single).with_quotes()
    return spell(value)
