"""`gradcomp plan`: its rows are the plan's, its table and picture tell them, its errors help."""

from __future__ import annotations

import builtins
import subprocess
import sys
import zipfile

import pytest

import gradcomp as gc
from gradcomp.calibration import kernel_speed
from gradcomp.cli import main
from gradcomp.codecs import codec
from gradcomp.cost import Cost, KernelSpeed, Link
from gradcomp.errors import ModelError
from gradcomp.models import Weight, checked_model, weights
from gradcomp.plan import as_text
from gradcomp.prediction import (
    CODECS,
    NONE,
    Row,
    auto_row,
    groups_of,
    planned_cost,
    rows_of,
    run,
    table,
)

SPEED = KernelSpeed(encode=8e-9, decode=2e-9, write=1e-9)
LINK = Link(bandwidth=1e8, latency=1e-3)
SMALL = [Weight("kernel", (1024, 1000)), Weight("bias", (1000,))]
LINK_WORDS = ("--ranks", "4", "--bandwidth", "1gbit", "--latency", "1ms")


def buckets_of(*specs: str) -> dict:
    return {spec: groups_of(SMALL, spec) for spec in (NONE, *specs)}


def test_rows_by_hand() -> None:
    rows = rows_of(buckets_of("quantize:bits=8"), {"quantize:bits=8": SPEED}, ranks=4)
    assert [(r.codec, r.route, r.planned) for r in rows] == [
        ("none", "dense", False),
        ("quantize:bits=8", "all_gather", False),
        ("quantize:bits=8", "two_phase", True),
    ]
    # One bucket of 4,100,000 bytes; then 1,024,000 bytes with 4,000 scales, and the bias dense.
    assert rows[0].cost == Cost(6_150_000, 6)
    assert (rows[1].cost.sent, rows[1].cost.messages) == (3 * 1_040_000 + 6000, 3 + 6)
    assert (rows[2].cost.sent, rows[2].cost.messages) == (1_560_000 + 6000, 6 + 6)
    assert rows[1].cost.kernels == pytest.approx(1.024e-3 * (8 + 4 * 2 + 1))
    assert rows[2].cost.kernels == pytest.approx(1.024e-3 * (8 + (4 * 2 + 1 + 8) / 4 + 2 + 1))


@pytest.mark.parametrize("spec", [NONE, *CODECS])
@pytest.mark.parametrize("ranks", [2, 5, 256, 300])
def test_planned_is_what_the_plan_sends(spec, ranks) -> None:
    model = weights("resnet50")
    plan = gc.Policy(spec).plan(model, world_size=ranks)
    groups = groups_of(model, spec)
    assert planned_cost(groups, ranks, SPEED).sent == plan.sent_bytes
    assert [g.chosen(ranks) for g in groups] == [b.route for b in plan.buckets]


def test_a_codec_that_is_not_worth_its_bytes_stays_dense() -> None:
    rows = rows_of(buckets_of("topk:density=0.01"), {"topk:density=0.01": SPEED}, ranks=1024)
    assert [(r.route, r.planned) for r in rows[1:]] == [("all_gather", False), ("dense", True)]
    assert rows[1].cost.sent > rows[0].cost.sent
    assert rows[2].cost.sent == pytest.approx(rows[0].cost.sent, abs=1)
    assert rows[2].cost.kernels == 0


def test_buckets_of_one_codec_may_take_several_routes() -> None:
    spec = "topk:density=0.01"
    # Two buckets, since the first alone is full; top-k costs a small tensor more bytes an element.
    model = [Weight("large", (4096, 4096)), Weight("small", (33, 33))]
    buckets = {NONE: groups_of(model, NONE), spec: groups_of(model, spec)}
    none, gathered, mixed = rows_of(buckets, {spec: SPEED}, ranks=255)
    assert (gathered.route, gathered.planned) == ("all_gather", False)
    assert (mixed.route, mixed.planned) == ("all_gather + dense", True)
    assert mixed.cost.sent < gathered.cost.sent < none.cost.sent


def test_a_model_of_which_nothing_is_compressed_costs_what_none_does() -> None:
    buckets = {spec: groups_of([Weight("bias", (1000,))], spec) for spec in (NONE, "fp16")}
    none, fp16 = rows_of(buckets, {"fp16": SPEED}, ranks=4)
    assert (fp16.route, fp16.cost) == ("dense", none.cost)


def test_table_tells_time_speed_up_and_break_even() -> None:
    rows = rows_of(buckets_of("quantize:bits=8"), {"quantize:bits=8": SPEED}, ranks=4)
    lines = as_text(table("a title", rows, LINK)).splitlines()
    cells = [[c.strip() for c in line.split("│")[1:-1]] for line in lines if "│" in line]
    assert "a title" in lines[0]
    # 61.5 ms and 6 messages; 31.26 ms and 9, 17.408 ms; 15.66 ms and 12, 15.616 ms.
    eight, gather, two = "quantize:bits=8", "all-gather", "two-phase *"
    assert cells == [
        ["none", "dense", "6,150,000", "67.5 ms", "0.0 ms", "67.5 ms", "1.00 ×", ""],
        # 3,024,000 bytes saved for 3 messages and 17.408 ms: 148.2 MB/s.
        [
            eight,
            gather,
            "3,126,000",
            "40.3 ms",
            "17.4 ms",
            "57.7 ms",
            "1.17 ×",
            "< 1.2 Gbit/s",
        ],
        # 4,584,000 bytes saved for 6 messages and 15.616 ms: 212.1 MB/s.
        [
            eight,
            two,
            "1,566,000",
            "27.7 ms",
            "15.6 ms",
            "43.3 ms",
            "1.56 ×",
            "< 1.7 Gbit/s",
        ],
    ]


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (Cost(2_000, 6, 0.001), "never"),
        (Cost(500, 6), "always"),
        (Cost(2_000, 2), "> 2.0 Mbit/s"),  # 1,000 bytes more, 4 messages fewer
    ],
)
def test_break_even_in_words(cost, words) -> None:
    rows = [Row(NONE, "dense", False, Cost(1_000, 6)), Row("fp16", "two_phase", True, cost)]
    assert words in as_text(table("", rows, LINK))


def test_run_prints_and_draws_with_the_speeds_it_is_given(tmp_path, capsys) -> None:
    picture = tmp_path / "plan.png"
    assert run("resnet50", 256, LINK, "1gbit, 1ms", picture, speed_of=lambda _: SPEED) == 0
    told = capsys.readouterr().out
    assert "resnet50, 256 ranks, 1gbit, 1ms" in told
    for spec in CODECS:
        assert f"│ {spec} " in told
    assert "…" not in told
    assert "25,583,592 gradients in 5 buckets" in told
    assert "an all-gather does for N payloads" in told
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_picture_says_what_to_type(monkeypatch, capsys) -> None:
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert main(["plan", "--model", "resnet50", *LINK_WORDS, "--plot", "x.png"]) == 1
    told = capsys.readouterr()
    assert "pip install matplotlib" in told.err
    assert told.out == ""


@pytest.mark.parametrize("spec", CODECS)
def test_kernels_of_every_codec_are_measured(spec) -> None:
    speed = kernel_speed(codec(spec), numel=1 << 17)
    assert speed.encode > 0
    assert speed.decode >= 0
    assert speed.write >= 0
    assert speed.decode + speed.write > 0


def test_command_measures_and_imports_no_tensorflow(tmp_path) -> None:
    picture = tmp_path / "plan.png"
    words = ["plan", "--model", "bert-base", *LINK_WORDS, "--plot", str(picture)]
    script = (
        "import sys\nfrom gradcomp.cli import main\n"
        "assert not {'rich', 'matplotlib'} & set(sys.modules)\n"
        f"assert main({words!r}) == 0\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "bert-base, 4 ranks, 1gbit, 1ms" in done.stdout
    assert "109,482,240 gradients" in done.stdout
    assert f"Wrote {picture}." in done.stdout
    assert picture.exists()


def test_a_picture_that_cannot_be_written_is_an_error(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("gradcomp.prediction.CODECS", ())
    picture = tmp_path / "missing" / "plan.png"
    assert main(["plan", "--model", "resnet50", *LINK_WORDS, "--plot", str(picture)]) == 1
    assert str(picture) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--bandwidth", "25", "'25' is no bandwidth: give a number above 0 and one of kbit, mbit"),
        ("--bandwidth", "25gb", "'25gb' is no bandwidth"),
        ("--bandwidth", "0gbit", "'0gbit' is no bandwidth"),
        ("--bandwidth", "-1gbit", "--bandwidth: expected one argument"),
        ("--bandwidth", "nangbit", "'nangbit' is no bandwidth"),
        ("--latency", "20", "'20' is no latency: give a number and one of ns, us, ms, s"),
        ("--latency", "1min", "'1min' is no latency"),
        ("--ranks", "1", "'1' is no integer of at least 2"),
        ("--ranks", "2.5", "'2.5' is no integer of at least 2"),
        ("--model", "resnet51", "'resnet51' is no known model: give resnet50 or bert-base, or a f"),
        ("--model", "missing.keras", "there is no file 'missing.keras'"),
    ],
)
def test_wrong_words_are_named(option, value, told, capsys) -> None:
    words = {"--model": "resnet50", "--ranks": "4", "--bandwidth": "1gbit", "--latency": "1ms"}
    words[option] = value
    with pytest.raises(SystemExit, match="2"):
        main(["plan", *(word for pair in words.items() for word in pair)])
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        ("bandwidth", "25gbit", 25e9),
        ("bandwidth", "2.5Gbit", 2.5e9),
        ("bandwidth", "100mbit", 1e8),
        ("bandwidth", "9kbit", 9e3),
        ("bandwidth", "1tbit", 1e12),
        ("latency", "20us", 20e-6),
        ("latency", "1.5ms", 1.5e-3),
        ("latency", "0us", 0),
        ("latency", "800ns", 8e-7),
        ("latency", "1s", 1),
    ],
)
def test_units(option, text, value, monkeypatch) -> None:
    links = []

    def told(model, ranks, link, words, picture):
        links.append((link, words))
        return 0

    monkeypatch.setattr("gradcomp.prediction.run", told)
    words = {"bandwidth": "8gbit", "latency": "1ms"} | {option: text}
    pairs = ["--bandwidth", words["bandwidth"], "--latency", words["latency"]]
    assert main(["plan", "--model", "resnet50", "--ranks", "4", *pairs]) == 0
    wanted = {"bandwidth": 8e9, "latency": 1e-3} | {option: value}
    ((link, named),) = links
    assert link.bandwidth == pytest.approx(wanted["bandwidth"] / 8)
    assert link.latency == pytest.approx(wanted["latency"])
    assert named == f"{words['bandwidth']}, {words['latency']}"


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras's own, when it saves
def test_a_keras_file(tmp_path, capsys) -> None:
    import keras

    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(256, name="wide"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dense(64, name="frozen", trainable=False),
            keras.layers.Dense(3, name="head"),
        ]
    )
    path = str(tmp_path / "model.keras")
    model.save(path)
    assert weights(path) == [
        ("wide/kernel", (8, 256), "float32"),
        ("wide/bias", (256,), "float32"),
        ("norm/gamma", (256,), "float32"),
        ("norm/beta", (256,), "float32"),
        ("head/kernel", (64, 3), "float32"),
        ("head/bias", (3,), "float32"),
    ]
    assert run(path, 4, LINK, "1gbit, 1ms", speed_of=lambda _: SPEED) == 0
    assert f"{8 * 256 + 3 * 256 + 64 * 3 + 3:,} gradients" in capsys.readouterr().out


def test_files_that_are_none_of_keras(tmp_path) -> None:
    text, archive, other = (tmp_path / name for name in ("a.keras", "b.keras", "model.h5"))
    text.write_text("no archive")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme", "nothing of Keras")
    other.write_text("")
    with pytest.raises(ModelError, match=r"a\.keras' is no Keras file: write it anew"):
        checked_model(str(text))
    with pytest.raises(ModelError, match=r"model\.h5' is no \.keras file: give resnet50"):
        checked_model(str(other))
    with pytest.raises(ModelError, match=r"cannot load '.*b\.keras'"):
        weights(str(archive))


def test_auto_is_the_least_of_its_candidates_or_none() -> None:
    model = weights("resnet50")
    specs = [c.spec for c in gc.Auto().allowed]
    speeds = {spec: SPEED for spec in specs}
    rows = rows_of({s: groups_of(model, s) for s in (NONE, *specs)}, speeds, 4)
    slow = auto_row(model, speeds, 4, LINK)
    assert slow.route == "quantize:bits=4 two_phase"
    assert slow.cost.total(LINK) == pytest.approx(min(r.cost.total(LINK) for r in rows), rel=1e-3)
    fast = Link(1e12, 1e-6)
    assert auto_row(model, speeds, 4, fast).route == "dense"
    lines = as_text(table("", [rows[0], slow], LINK)).splitlines()
    assert any("auto" in line and "two-phase" in line for line in lines)
