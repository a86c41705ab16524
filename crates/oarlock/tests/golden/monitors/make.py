"""Makes the files beside it with the programs that read such files: tensorboard, wandb, swanlab and deepspeed.

    python make.py events     (needs tensorboard)
    python make.py wandb      (needs wandb; writes the framing of LevelDB's logs itself, by its documentation)
    python make.py swanlab    (needs swanlab 0.10.3)
    python make.py profile    (needs deepspeed, torch, transformers; DS_ACCELERATOR=cpu)
"""

import json
import pathlib
import struct
import sys
import zlib

HERE = pathlib.Path(__file__).parent


def events():
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.summary.writer.record_writer import RecordWriter

    scalars = Summary(
        value=[
            Summary.Value(tag="Train/Samples/lr", simple_value=5e-5),
            Summary.Value(tag="zero", simple_value=0.0),
        ]
    )
    text = Summary.Value(
        tag="args/text_summary",
        metadata=SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text")),
        tensor=TensorProto(
            dtype="DT_STRING",
            string_val=[b"    {}\n"],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        ),
    )
    with open(HERE / "events.tfevents", "wb") as file:
        writer = RecordWriter(file)
        for event in [
            Event(wall_time=1.5e9, file_version="brain.Event:2"),
            Event(wall_time=1.5e9, step=41, session_log=SessionLog(status=SessionLog.START)),
            Event(wall_time=1.5e9 + 0.25, step=48, summary=scalars),
            Event(wall_time=1.5e9 + 0.5, summary=Summary(value=[text])),
        ]:
            writer.write(event.SerializeToString())
        writer.flush()


def wandb():
    from wandb.proto.wandb_internal_pb2 import HistoryItem, HistoryRecord, HistoryStep, Record, RunExitRecord

    def item(name, value):
        return HistoryItem(key=name, value_json=value)

    records = [
        Record(
            num=1,
            history=HistoryRecord(
                item=[item("Train/Samples/lr", "0.5"), item("nan", "NaN")],
                step=HistoryStep(num=8),
            ),
        ),
        Record(
            num=2,
            history=HistoryRecord(item=[item("long", '"' + "x" * 40_000 + '"')], step=HistoryStep(num=16)),
        ),
        Record(num=3, exit=RunExitRecord(runtime=7)),
    ]
    out = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for record in records:
        data, first = record.SerializeToString(), True
        while True:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += bytes(room)
                continue
            piece, data = data[: room - 7], data[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[(first, not data)]
            out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + piece), len(piece), kind) + piece
            first = False
            if not data:
                break
    (HERE / "run.wandb").write_bytes(out)


def swanlab():
    from google.protobuf.timestamp_pb2 import Timestamp
    from swanlab.proto.swanlab.metric.column.v1.column_pb2 import ColumnClass, ColumnRecord, ColumnType, SectionType
    from swanlab.proto.swanlab.metric.data.v1.data_pb2 import ScalarRecord, ScalarValue
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.proto.swanlab.run.v1.run_pb2 import FinishRecord, RunState, StartRecord
    from swanlab.proto.swanlab.save.v1.save_pb2 import SaveRecord, SaveType
    from swanlab.sdk.internal.core_python.store import DataStoreWriter

    time = Timestamp(seconds=1_500_000_000, nanos=250_000_000)
    number = ColumnType.COLUMN_TYPE_SCALAR

    def scalar(step, value):
        return ScalarRecord(
            key="train/loss", step=step, type=number, timestamp=time, value=ScalarValue(number=value)
        )

    start = StartRecord(
        project="llamafactory", workspace="team", name="first", id="abcd1234", started_at=time
    )
    save = SaveRecord(name="config", source_path="/run/files/config.yaml", type=SaveType.SAVE_TYPE_CONFIG)
    column = ColumnRecord(
        column_class=ColumnClass.COLUMN_CLASS_CUSTOM,
        column_type=number,
        column_key="train/loss",
        section_name="train",
        section_type=SectionType.SECTION_TYPE_PUBLIC,
    )
    finish = FinishRecord(state=RunState.RUN_STATE_CRASHED, error="x" * 40_000, finished_at=time)
    path = HERE / "run.swanlab"
    path.unlink(missing_ok=True)
    writer = DataStoreWriter()
    writer.open(path)
    for record in [
        Record(num=-1, timestamp=time, start=start),
        Record(num=-3, timestamp=time, save=save),
        Record(num=1, timestamp=time, column=column),
        Record(num=2, timestamp=time, scalar=scalar(0, 0.0)),
        Record(num=3, timestamp=time, scalar=scalar(10, float("nan"))),
        Record(num=-2, timestamp=time, finish=finish),
    ]:
        writer.write(record.SerializeToString())
    writer.close()


def profile():
    import torch
    from deepspeed.profiling.flops_profiler import get_model_profile
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(HERE.parent / "train-llama", attn_implementation="sdpa")
    ids = torch.zeros(6, 32, dtype=torch.long)
    flops, macs, params = get_model_profile(
        model, kwargs={"input_ids": ids, "labels": ids}, as_string=False, print_profile=True, detailed=True
    )
    (HERE / "profile.json").write_text(json.dumps({"flops": flops, "macs": macs, "params": params}) + "\n")


if __name__ == "__main__":
    {"events": events, "wandb": wandb, "swanlab": swanlab, "profile": profile}[sys.argv[1]]()
