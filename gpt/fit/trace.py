"""What a trace of training steps says: how long each part of a step takes, and each operator."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

PARTS = ("data", "forward", "backward", "optimizer")  # annotations, one after the other; the rest is "other"
BETWEEN = "Python and autograd between operators"
COMPILED = "compiled code"
# What operators are for, by name; the first that fits.
KINDS = {
    "matrix products": re.compile(r"(?<![a-z])(mm|addmm|bmm|baddbmm|matmul|einsum|\w*linear\w*|\w*attention\w*)$"),
    COMPILED: re.compile(r"Compiled|cpp_fused|triton"),
    "copies": re.compile(r"^aten::(copy_|to|_to_copy|clone|contiguous|fill_|zero_|zeros|cat|stack|_foreach_zero_)$"),
    "softmax and norms": re.compile(r"softmax|norm|nll_loss|cross_entropy"),
    "elementwise": re.compile(
        r"^aten::(_foreach_)?(add|addc\w+|clamp\w*|div|exp|gelu\w*|lerp|log|max\w+|min\w+|mul|neg|pow|relu\w*|rsqrt"
        r"|sqrt|square|sub|threshold\w*|where)_?$"
    ),
    "calls to the device": re.compile(r"^cu(da)?[A-Z]"),
    BETWEEN: re.compile(r"^autograd::|Backward\d*$|AccumulateGrad$|^TorchDynamo"),
    "other operators": re.compile(""),
}
WASTED = 0.3  # share of a step in which nothing is computed, from which it is worth a word


@dataclass
class Event:
    """Something that took time on a thread or a device; times in microseconds."""

    name: str
    start: float
    length: float
    kind: str
    shapes: str = ""  # of an operator's tensors
    identity: Any = None  # of an operator; a kernel has that of the one which has launched it
    depth: int = field(init=False, default=0)  # how many others it is within
    alone: float = field(init=False, default=0.0)  # its time without those that are within it

    @property
    def end(self) -> float:
        """When it was over."""
        return self.start + self.length


def nest(events: Iterable[Event]) -> list[Event]:
    """Find out which events of one thread lie within which: sets `depth` and `alone`, returns them in order."""
    ordered = sorted(events, key=lambda event: (event.start, -event.length))
    around: list[Event] = []
    for event in ordered:
        while around and around[-1].end <= event.start:
            around.pop()
        event.depth, event.alone = len(around), event.length
        if around:
            around[-1].alone = max(0.0, around[-1].alone - event.length)
        around.append(event)
    return ordered


def digest(trace: dict[str, Any], unrecorded: float | None) -> dict[str, Any]:
    """Reduce a trace to what a page shows.

    Args:
        trace: in Chrome's format; annotations say where a `step` is, and in it its `PARTS`.
        unrecorded: seconds that a step takes when it is not recorded; None where that is not known.

    Returns:
        `sentences`; `bars`, each with a title and the milliseconds of each part; `kinds` of operators, and which of
        them is `between` operators; `operators`, each with name, shapes, kind, and for one step the calls and the
        milliseconds alone, in all and on the device; `step`, its milliseconds; and the `timeline` of one step.
    """
    threads: dict[Any, list[Event]] = defaultdict(list)
    streams: dict[str, list[Event]] = defaultdict(list)
    for raw in trace["traceEvents"]:
        if raw.get("cat") in ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"):
            threads[raw["tid"]].append(_event(raw))
        elif raw.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            streams[f"device {raw['pid']}, stream {raw['tid']}"].append(_event(raw))
    main = next(thread for thread, events in threads.items() if any(event.name == "step" for event in events))
    steps = [event for event in threads[main] if event.name == "step"]
    shown = sorted(steps, key=lambda step: step.length)[len(steps) // 2]
    rows = {"training": threads[main]} | {f"thread {thread}": threads[thread] for thread in threads if thread != main}
    timeline = _timeline(shown, rows | streams) | {"memory": _memory(shown, trace["traceEvents"])}

    # The backward pass of a GPU has a thread of its own, for which the main one waits.
    engine = [events for events in threads.values() if any(event.name.startswith("autograd::") for event in events)]
    ours = nest({id(event): event for events in [threads[main], *engine] for event in events}.values())
    ours = [event for event in ours if any(step.start <= event.start < step.end for step in steps)]
    launchers = {event.identity: event for event in ours if event.identity is not None}
    kernels = [kernel for events in streams.values() for kernel in events if kernel.identity in launchers]

    milliseconds = 1e-3 / len(steps)  # in one step, of microseconds in all
    step = sum(each.length for each in steps) * milliseconds
    parts = [event for event in ours if event.name in PARTS]
    on_cpu, on_device = (dict.fromkeys((*PARTS, "other"), 0.0) for _ in range(2))
    for part in parts:
        on_cpu[part.name] += part.length * milliseconds
    on_cpu["other"] = max(0.0, step - sum(on_cpu.values()))
    operators: dict[tuple[str, str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for event in ours:
        key = (BETWEEN, "", BETWEEN) if event.kind == BETWEEN else (event.name, event.shapes, event.kind)
        values = (1.0, event.alone * milliseconds, event.length * milliseconds, 0.0)
        operators[key] = [before + more for before, more in zip(operators[key], values, strict=True)]
    between = operators[BETWEEN, "", BETWEEN]
    between[0], between[2] = 0.0, between[1]  # it is not called, and has no others do anything
    for kernel in kernels:
        launcher = launchers[kernel.identity]
        within = next((part.name for part in parts if part.start <= launcher.start < part.end), "other")
        on_device[within] += kernel.length * milliseconds
        operators[launcher.name, launcher.shapes, launcher.kind][3] += kernel.length * milliseconds
    busy = covered((kernel.start, kernel.end) for kernel in kernels) * milliseconds
    bars: list[dict[str, Any]] = [{"title": "on the CPU" if kernels else "", "parts": on_cpu}]
    if kernels:
        bars.append({"title": "on the device", "parts": on_device | {"idle": max(0.0, step - busy)}})
    return {
        "sentences": _sentences(step, unrecorded, on_cpu, operators, busy if kernels else None),
        "step": step,
        "bars": bars,
        "kinds": list(KINDS),
        "between": list(KINDS).index(BETWEEN),
        "operators": [[*key, calls / len(steps), *times] for key, (calls, *times) in operators.items()],
        "timeline": timeline,
    }


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """How much of the time lies within at least one of these spans."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _event(raw: dict[str, Any]) -> Event:
    about = raw.get("args", {})
    name, marked = str(raw["name"]), raw["cat"] == "user_annotation"
    kind = next(kind for kind, pattern in KINDS.items() if pattern.search(name))
    if marked and kind != COMPILED:
        kind = BETWEEN
    shapes = " ".join("×".join(map(str, each)) for each in about.get("Input Dims", ()) if each)
    identity = None if marked or raw["cat"].startswith("cuda_") else about.get("External id")
    return Event(name, float(raw["ts"]), float(raw.get("dur", 0)), kind, shapes, identity)


def _timeline(step: Event, rows: dict[str, list[Event]]) -> dict[str, Any]:
    """What happened in one step, as numbers: names and shapes are numbered, times are tenths of a microsecond."""
    names: dict[str, int] = {}
    shapes: dict[str, int] = {}
    kinds: list[int] = []
    shown = []
    for title, events in rows.items():
        numbers: list[list[int]] = []
        for event in nest(event for event in events if step.start <= event.start < step.end):
            if event.name not in names:
                kinds.append(list(KINDS).index(event.kind))
            name = names.setdefault(event.name, len(names))
            start, length = round(10 * (event.start - step.start)), max(1, round(10 * event.length))
            shape, alone = shapes.setdefault(event.shapes, len(shapes)), round(10 * event.alone)
            numbers.append([name, start, length, event.depth, shape, alone])
        if numbers:
            shown.append({"title": title, "events": numbers})
    return {
        "length": round(10 * step.length),
        "names": list(names),
        "kinds": kinds,
        "shapes": list(shapes),
        "rows": shown,
    }


def _memory(step: Event, events: list[dict[str, Any]]) -> list[list[int]]:
    """What one step holds beyond what was held when it began: times (tenths of a microsecond) and bytes."""
    found = [
        (raw["ts"], raw["args"]["Device Type"], raw["args"]["Total Allocated"], raw["args"]["Bytes"])
        for raw in events
        if raw["name"] == "[memory]" and step.start <= raw["ts"] < step.end
    ]
    device = max((kind for _, kind, _, _ in found), default=0)  # 0 is the CPU
    ours = sorted(each for each in found if each[1] == device)
    return [[round(10 * (at - step.start)), total - (ours[0][2] - ours[0][3])] for at, _, total, _ in ours]


def _sentences(
    step: float,
    unrecorded: float | None,
    parts: dict[str, float],
    operators: dict[tuple[str, str, str], list[float]],
    busy: float | None,
) -> list[str]:
    """What it means, in words; times in milliseconds but for `unrecorded`."""
    otherwise = "" if unrecorded is None else f", {1000 * unrecorded:.3g} ms when it is not"
    longest = max(parts, key=lambda part: parts[part])
    kinds: dict[str, float] = defaultdict(float)
    for (_, _, kind), (_, alone, _, on_device) in operators.items():
        kinds[kind] += alone if busy is None else on_device
    shares = {kind: kinds[kind] / step for kind in sorted(kinds, key=lambda kind: -kinds[kind])}
    said = ", ".join(f"{100 * share:.0f} % {kind}" for kind, share in shares.items() if share >= 0.005)
    sentences = [
        f"A training step takes {step:.3g} ms while it is recorded{otherwise}. "
        f"Its longest part is {longest}, {100 * parts[longest] / step:.0f} %."
    ]
    if busy is None:
        sentences.append(f"What the time goes into: {said}.")
        wasted, what = shares.get(BETWEEN, 0.0), "pass without an operator"
    else:
        sentences.append(f"The device computes for {100 * busy / step:.0f} % of the time: {said}.")
        wasted, what = 1 - busy / step, "the device waits"
    if wasted >= WASTED:
        compiling = "" if shares.get(COMPILED) else ", or compile=true,"
        sentences.append(
            f"{100 * wasted:.0f} % of the time {what}: a larger data.batch{compiling} gives it more to do at once."
        )
    return sentences
