"""Private names of TensorBoard: seen in TensorBoard 2.21. Its public writers cannot read or cut an event file."""

from tensorboard.compat.proto.event_pb2 import Event as Event
from tensorboard.compat.proto.summary_pb2 import Summary as Summary
