"""`gc.report`: every status, on ranks in one process; engines are in their scenarios."""

import itertools
import logging
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from hosts import run_on_hosts
from invariants import make_reducer, tensors_of
from reports import exchange_of, lines_about_the_engine, told_of

import gradcomp as gc
from gradcomp import live, policy
from gradcomp.collective import LocalCollective, alone
from gradcomp.distribute import engine
from gradcomp.reducer import Reducer
from gradcomp.warmup import schedule

SHAPES = {"net/embedding/table": (64, 32), "net/dense/kernel": (48, 32), "net/dense/bias": (32,)}


class Variable:
    """What a plan looks at."""

    def __init__(self, path, shape, dtype="float32") -> None:
        self.path, self.shape, self.dtype = path, shape, dtype


def variables():
    return [Variable(path, shape) for path, shape in SHAPES.items()]


def ones(**changed):
    """A gradient of ones for each variable, but those that are named by their last part."""
    return [changed.get(path.split("/")[-1], tf.ones(shape)) for path, shape in SHAPES.items()]


numbers = itertools.count()


def told_by(compression, gradients, ranks=2, plan=None):
    """The report after each rank has reduced `gradients(rank)`, or nothing where that is None."""
    name = f"test.report{next(numbers)}"

    def work(rank):
        chosen = plan or schedule(compression).plan(variables(), ranks)
        reducer = Reducer(chosen, rank, name=name, key=f"{name}.replica{rank.rank}")
        if gradients is not None:
            reducer.reduce(gradients(rank.rank))
        rank.all_gather_object(None, name="end")
        return reducer

    kept = LocalCollective(ranks).run(work)
    found = exchange_of(name)
    del kept
    return found


def statuses(exchange):
    return {v.path.split("/")[-1]: (v.happened, v.why) for v in exchange.variables}


def test_before_the_first_step() -> None:
    exchange = told_by("fp16", None)
    assert {v.happened for v in exchange.variables} == {"nothing yet"}
    assert exchange.engine == "2 threads"


def test_what_is_sent_and_why_something_is_sent_dense() -> None:
    chosen = gc.Policy("quantize:bits=4", rules=[("embedding", None)], min_numel=1600)
    assert statuses(told_by(chosen, lambda _: ones())) == {
        "table": ("sent dense", "rule 'embedding' says none"),
        "kernel": ("sent dense", "fewer elements than min_numel=1600"),
        "bias": ("sent dense", "rank 0 or 1, like a bias"),
    }
    exchange = told_by("quantize:bits=4", lambda _: ones())
    assert statuses(exchange)["table"] == ("compressed", "")
    table, kernel, bias = exchange.variables
    assert (table.codec, table.route, table.raw_bytes) == ("quantize:bits=4", "all_gather", 8192)
    assert table.payload_bytes == gc.Quantize(bits=4).payload_size(64 * 32)
    assert (kernel.shape, kernel.path) == ((48, 32), "net/dense/kernel")
    assert (bias.codec, bias.route, bias.payload_bytes) == ("none", "dense", 128)


def test_no_codec_one_that_sends_all_and_one_that_is_no_gain() -> None:
    assert set(statuses(told_by(None, lambda _: ones())).values()) == {
        ("sent dense", "no codec was asked for")
    }
    told = statuses(told_by("identity", lambda _: ones()))
    assert told["kernel"] == ("sent dense", "identity sends gradients as they are")
    told = told_by("topk:density=0.9", lambda _: ones(), ranks=6)
    assert statuses(told)["kernel"] == (
        "sent dense",
        "among 6 ranks the route with the fewest bytes is dense",
    )
    assert told.variables[1].codec == "topk:density=0.9"
    assert told.variables[1].payload_bytes == told.variables[1].raw_bytes


def test_a_dtype_that_is_never_compressed() -> None:
    plan = gc.Policy("fp16").plan([Variable("wide", (64, 64), "float64")], 2)
    told = told_by(None, lambda _: [tf.ones((64, 64), "float64")], plan=plan)
    assert statuses(told) == {"wide": ("sent dense", "float64 is never compressed")}
    assert told.variables[0].raw_bytes == 8 * 64 * 64


def test_disabled(monkeypatch) -> None:
    monkeypatch.setenv("GRADCOMP_DISABLE", "1")
    monkeypatch.setattr(policy, "_said_disabled", True)
    told = statuses(told_by("fp16", lambda _: ones()))
    assert set(told.values()) == {("sent dense", "GRADCOMP_DISABLE is set")}


def test_no_gradient_anywhere_and_on_one_rank() -> None:
    told = statuses(
        told_by("fp16", lambda rank: ones(kernel=None, **({"table": None} if rank else {})))
    )
    assert told["kernel"] == ("no gradient", "none on any of 2 ranks")
    assert told["table"] == ("compressed", "a gradient on 1 of 2 ranks")


def test_a_value_that_is_not_finite() -> None:
    bad = tf.fill((48, 32), np.float32(np.inf))
    told = statuses(told_by("fp16", lambda rank: ones(kernel=bad) if rank else ones()))
    assert set(told.values()) == {
        ("not finite", "a reduced value of this step was not; residuals stay as they were")
    }


def test_slices() -> None:
    rows = tf.IndexedSlices(tf.ones((2, 32)), tf.constant([3, 5]), tf.constant([64, 32]))
    exchange = told_by("topk:density=0.1", lambda _: ones(table=rows))
    assert statuses(exchange)["table"] == ("rows compressed", "")
    assert (exchange.variables[0].route, exchange.variables[0].payload_bytes) == ("rows", None)
    told = statuses(told_by("topk:density=0.1", lambda rank: ones(table=None if rank else rows)))
    assert told["table"] == ("rows compressed", "a gradient on 1 of 2 ranks")
    chosen = gc.Policy("fp16", rules=[("table", None)])
    assert statuses(told_by(chosen, lambda _: ones(table=rows)))["table"] == (
        "rows uncompressed",
        "rule 'table' says none",
    )


def test_between_hosts_rows_go_uncompressed() -> None:
    name = f"test.report{next(numbers)}"

    def work(rank):
        key = f"{name}.replica{rank.rank}"
        reducer = make_reducer(rank, gc.FP16(), name=name, key=key)
        gradients = tensors_of(rank.rank, 0)
        rows = tf.IndexedSlices(gradients[0][:1], tf.constant([0]), tf.constant([7, 130]))
        reducer.reduce([rows, *gradients[1:]])
        return reducer

    kept = run_on_hosts((2, 1), work)
    table, *others = exchange_of(name).variables
    del kept
    assert (table.happened, table.payload_bytes) == ("rows uncompressed", None)
    assert "hosts are summed first" in table.why
    assert {v.happened for v in others} == {"compressed"}


def test_an_epoch_of_a_warm_up(monkeypatch) -> None:
    warmup = gc.Warmup("topk:density=0.01", epochs=2, start="none")
    for epoch, status, codec in (
        (0, ("sent dense", "warm-up, epoch 1 of 2"), "none"),
        (1, ("compressed", ""), "topk:density=0.1"),
        (2, ("compressed", ""), "topk:density=0.01"),
    ):
        monkeypatch.setattr(live, "epoch", epoch)
        exchange = told_by(warmup, lambda _: ones())
        kernel = exchange.variables[1]
        assert (kernel.happened, kernel.why) == status
        assert kernel.codec == codec
        expected = 4 * 48 * 32 if codec == "none" else gc.codec(codec).payload_size(48 * 32)
        assert kernel.payload_bytes == expected


@pytest.mark.parametrize("xla", [False, True])
def test_nobody_to_exchange_with(xla) -> None:
    reducer = Reducer(gc.Policy("fp16").plan(variables(), 1), alone(), name=f"test.alone{xla}")
    step = tf.function(lambda: reducer.reduce(ones(kernel=None)).gradients[0], jit_compile=xla)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is nothing to compress
        step()
    exchange = exchange_of(reducer.name)
    assert statuses(exchange) == {
        "table": ("not sent", "there is nobody to exchange it with"),
        "kernel": ("no gradient", ""),
        "bias": ("not sent", "there is nobody to exchange it with"),
    }
    assert exchange.engine == "one process"
    assert {(v.route, v.payload_bytes) for v in exchange.variables} == {("none", 0)}


def test_a_verdict_that_skips_the_step_is_told_until_the_next() -> None:
    reducer = Reducer(gc.Policy().plan(variables(), 1), alone(), name="test.skipped")
    reducer.reduce(ones())
    assert statuses(exchange_of("test.skipped"))["table"][0] == "not sent"
    verdict = tf.Variable(False)
    decide = tf.function(lambda: reducer.everywhere(verdict.read_value()), jit_compile=True)
    decide()
    assert set(statuses(exchange_of("test.skipped")).values()) == {
        ("skipped", "a gradient was not finite, so nothing was exchanged")
    }
    verdict.assign(True)
    decide()
    reducer.reduce(ones())
    assert statuses(exchange_of("test.skipped"))["table"][0] == "not sent"


def test_it_prints_a_table() -> None:
    def work(rank):
        name = "test.printed"
        plan = gc.Policy("topk:density=0.01").plan(variables(), 2)
        reducer = Reducer(plan, rank, name=name, key=f"{name}.replica{rank.rank}")
        rows = tf.IndexedSlices(tf.ones((1, 32)), tf.constant([3]), tf.constant([64, 32]))
        reducer.reduce(ones(table=rows))
        rank.all_gather_object(None, name="end")
        return str(gc.report()) if rank.rank == 0 else None

    text, _ = LocalCollective(2).run(work)
    table = text[text.index("test.printed") :]
    assert "test.printed: 2 threads" in table
    (row,) = [line for line in table.splitlines() if "net/dense/kernel" in line]
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert cells == [
        "net/dense/kernel",
        "48×32",
        "topk:density=0.01",
        "all_gather",
        "6,144",
        f"{gc.TopK(density=0.01).payload_size(48 * 32):,}",
        "compressed",
    ]
    (row,) = [line for line in table.splitlines() if "net/embedding/table" in line]
    assert "by rows" in row and "rows compressed" in row


def test_reducers_that_are_gone_are_not_told_of(monkeypatch) -> None:
    monkeypatch.setattr(live, "_reducers", {})
    monkeypatch.setattr(live, "bypassed", list)
    reducer = Reducer(gc.Policy().plan(variables(), 1), alone(), name="test.gone")
    assert [e.name for e in gc.report().exchanges] == ["test.gone"]
    del reducer
    assert str(gc.report()) == (
        "gradcomp exchanges no gradients in this process: no optimizer was built yet"
    )


def net_and_optimizer(compression="fp16"):
    keras.utils.set_random_seed(0)
    net = keras.Sequential([keras.layers.Input((40,)), keras.layers.Dense(40, name="dense")])
    return net, gc.DistributedOptimizer(keras.optimizers.SGD(0.1), compression)


def test_an_optimizer_in_one_process_says_so_once_and_reports_it() -> None:
    made = []

    def build():
        for _ in range(2):
            net, opt = net_and_optimizer(None)
            opt.build(net.trainable_variables)
            made.append(opt)

    assert lines_about_the_engine(build) == [
        "the engine is one process: there is nobody to exchange gradients with"
    ]
    assert told_of(made[0])["dense/kernel"] == ("nothing yet", "")


def test_the_line_is_seen_where_nobody_has_set_up_logging(monkeypatch, capsys) -> None:
    logger = logging.getLogger("gradcomp")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)  # pytest's own handlers are the root's
    level = logger.level
    engine.say_once.cache_clear()
    for _ in range(2):
        engine.say_once("Horovod with 2 ranks", False)
    logger.setLevel(level)
    assert capsys.readouterr().err == (
        "gradcomp: the engine is Horovod with 2 ranks: gradients are exchanged\n"
    )


def test_where_logging_is_set_up_its_level_decides(caplog) -> None:
    for level, expected in ((logging.WARNING, 0), (logging.INFO, 1)):
        engine.say_once.cache_clear()
        caplog.clear()
        with caplog.at_level(level, "gradcomp"):
            engine.say_once("Horovod with 2 ranks", False)
        assert len(caplog.records) == expected
