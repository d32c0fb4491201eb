"""Tables of measured steps: rows as strategies, and rows that contradict themselves."""

import json

import pytest

from formats.core.errors import InputError
from opmatrix.parallel.search.step_rows import NEEDED, read_step_rows

CONFIG = dict(model_type="gpt2", vocab_size=64, n_embd=16, n_positions=32, n_head=4, n_layer=4)
ROW = dict(
    source="somewhere",
    config="tiny",
    machine="A800",
    devices="16",
    dp="2",
    tp="4",
    pp="2",
    cp="1",
    ep="1",
    virtual="1",
    zero="1",
    sequence="yes",
    micro_batch="2",
    global_batch="8",
    seq="32",
    recompute="selective",
    schedule="1f1b",
    step_s="2.5",
    memory="3",
    memory_kind="nvidia-smi GiB",
)


@pytest.fixture
def read(tmp_path):
    """Writes rows that differ from ROW, and reads them."""

    def run(*changes, configs=True):
        rows = [ROW | change for change in changes]
        file = tmp_path / "steps.csv"
        lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
        file.write_text("\n".join(lines) + "\n")
        if configs:
            (tmp_path / "steps.configs.json").write_text(json.dumps({"tiny": CONFIG}))
        return read_step_rows(file)

    return run


def test_a_row_is_a_strategy_with_its_seconds(read):
    step, by_tokens, failed = read(
        {"tokens_s_device": "", "notes": ""},
        {"step_s": "", "tokens_s_device": "4", "notes": ""},
        {"step_s": "", "tokens_s_device": "", "notes": "out of memory", "memory": ""},
    )
    how = step.strategy
    assert (how.dp, how.tp, how.pp, how.micro_batch, how.zero, how.sequence) == (2, 4, 2, 2, 1, True)
    assert (step.batch, step.seq, step.seconds, step.memory) == (8, 32, 2.5, 3 * 2**30)
    assert step.config == CONFIG and step.machine.name == "A800" and step.machine.links[0].bandwidth == 200e9
    assert by_tokens.seconds == 8 * 32 / (4 * 16)
    assert failed.failed and failed.seconds is None and failed.memory is None


@pytest.mark.parametrize(
    "change, words",
    [
        ({"devices": "8"}, "row 1: dp 2 x tp 4 x pp 2 x cp 1 are 16 ranks, and the row has 8 devices"),
        ({"tp": "-4"}, "row 1: tp is '-4': give a whole number from 1 on"),
        ({"seq": "many"}, "row 1: seq is 'many'"),
        ({"machine": "A1000"}, "machine 'A1000': there is no data sheet"),
        ({"config": "nothing"}, "nothing: there is no well-known model"),
    ],
)
def test_a_row_that_contradicts_itself_is_one_line(read, change, words):
    with pytest.raises(InputError, match=words) as error:
        read(change)
    assert "\n" not in str(error.value)


def test_a_table_without_columns_or_rows_is_refused(tmp_path):
    file = tmp_path / "steps.csv"
    file.write_text("source,config\nsomewhere,tiny\n")
    with pytest.raises(InputError, match="column machine is missing"):
        read_step_rows(file)
    file.write_text(",".join(NEEDED) + "\n")
    with pytest.raises(InputError, match="it has no rows"):
        read_step_rows(file)
