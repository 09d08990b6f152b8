"""Private names of TensorBoard 2.21: the public API cannot read or shorten an event file."""

from tensorboard.compat.proto.event_pb2 import Event as Event
from tensorboard.compat.proto.summary_pb2 import Summary as Summary
