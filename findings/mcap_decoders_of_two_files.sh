#!/usr/bin/env bash
# One `DecoderFactory` of mcap's ROS 2 or Protobuf support for two files decodes the second by the first one's schemas.
#
# It keeps decoders by the schema's id, which counts from 1 in each file, and compares neither name nor text. A recording
# whose message has the same fields in another order is read with the values of position and velocity exchanged; one of
# another message too, if it is as long. Nothing is raised. A factory for each file is right.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    mcap==1.6.0 mcap-ros2-support==0.6.0 mcap-protobuf-support==0.6.0 protobuf==7.36.2
"$work/venv/bin/python" - <<'PYTHON'
import io
from importlib.metadata import version

import mcap_protobuf.decoder
import mcap_protobuf.writer
import mcap_ros2.decoder
import mcap_ros2.writer
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from mcap.reader import make_reader

JOINT = {"position": 1.5, "velocity": -0.25}


def ros2(fields):
    """A recording of one message whose definition has these fields in order."""
    file = io.BytesIO()
    writer = mcap_ros2.writer.Writer(file)
    schema = writer.register_msgdef("robot/Joint", "".join(f"float64 {field}\n" for field in fields))
    writer.write_message("/joint", schema, JOINT, log_time=1, publish_time=1, sequence=1)
    writer.finish()
    return file


def protobuf(fields):
    described = FileDescriptorProto(name="joint.proto", package="robot", syntax="proto3")
    message = described.message_type.add(name="Joint")
    for number, field in enumerate(fields, 1):
        message.field.add(name=field, number=number, type=1, label=1)
    pool = DescriptorPool()
    pool.Add(described)
    joint = GetMessageClass(pool.FindMessageTypeByName("robot.Joint"))
    file = io.BytesIO()
    with mcap_protobuf.writer.Writer(file) as writer:
        writer.write_message("/joint", joint(**JOINT), 1, 1)
    return file


def read(file, factory):
    file.seek(0)
    [found] = make_reader(file, decoder_factories=[factory]).iter_decoded_messages()
    return {name: getattr(found.decoded_message, name) for name in JOINT}


print(", ".join(f"{name} {version(name)}" for name in ("mcap", "mcap-ros2-support", "mcap-protobuf-support")))
for make, package in ((ros2, mcap_ros2), (protobuf, mcap_protobuf)):
    first, second = make(["position", "velocity"]), make(["velocity", "position"])
    shared = package.decoder.DecoderFactory()
    seen = read(first, shared), read(second, shared), read(second, package.decoder.DecoderFactory())
    print(f"  {make.__name__}: first {seen[0]}; second by the same factory {seen[1]}; by its own {seen[2]}")
    assert seen == (JOINT, {"position": -0.25, "velocity": 1.5}, JOINT), "changed"
PYTHON
