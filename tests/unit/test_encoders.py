"""Frozen encoders at a site: files by hash, records one by one, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from veilsum_node.errors import ConfigurationError, HostileInput, Misuse
from veilsum_participant.checks import CheckOutcome, SiteCheck
from veilsum_participant.data import encoders
from veilsum_participant.data.encoders import ProgramEncoder, find_encoder, load_encoder
from veilsum_participant.settings.config import load_participant_config
from veilsum_participant.settings.dataset_config import EncoderConfig
from veilsum_participant.settings.encoder_files import file_digest
from veilsum_privacy.study.encoder import MAX_INPUTS, Program, Projection
from veilsum_privacy.study.projections import check_projection, projection_digest


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(20, 33)
        self.norm = nn.BatchNorm1d(33)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(33, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.drop(torch.relu(self.norm(self.first(x))))
        return self.second(hidden)


class _Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 7, 3, padding=1), nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(7 * 10, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(x))


class _Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1.0)
        return x + self.seen


class _Integer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        return x + float(self.seen)


class _Keeping(nn.Module):
    """Adds up what it sees in a tensor that tracing takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.seen.add_(x[0])


class _Sly(nn.Module):
    """Keeps records whose first value is large, and adds them to later ones of that kind."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.trace(_Keeping(), torch.zeros(1, 4), check_trace=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x[0, 0] > 0.8):
            return self.inner(x)
        return x


class _Fragile(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x[0, 0] > 0.8):
            raise ValueError("no")
        if bool(x[0, 0] < -0.8):
            return x[:, :2]
        return torch.log(x + 0.9)


class _Printing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(x)
        return x


class _Random(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(1, 4)


def _scripted(module: nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module), buffer)
    return buffer.getvalue()


def _traced(module: nn.Module, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.trace(module.eval(), torch.zeros(1, *shape), check_trace=False), buffer)
    return buffer.getvalue()


def _exported(module: nn.Module, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(module, (torch.zeros(1, *shape),)), buffer)
    return buffer.getvalue()


def _declared(data: bytes, inputs: tuple[int, ...], width: int, form: str = "torchscript") -> Program:
    return Program.model_validate(
        {
            "kind": "program",
            "format": form,
            "sha256": hashlib.sha256(data).hexdigest(),
            "inputs": inputs,
            "width": width,
        }
    )


def _load(tmp_path: Path, data: bytes, inputs: tuple[int, ...], width: int, form: str = "torchscript") -> ProgramEncoder:
    path = tmp_path / "encoder.pt"
    path.write_bytes(data)
    return load_encoder(path, _declared(data, inputs, width, form))


def _network(kind: str) -> tuple[nn.Module, tuple[int, ...], int]:
    torch.manual_seed(5)
    if kind == "mlp":
        net = _Mlp()
        net(torch.randn(64, 20))  # running statistics that are not the first ones
        return net, (20,), 5
    return _Convolution(), (1, 4, 10), 6


def _columns(number: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (number, width))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["mlp", "convolution"])
@pytest.mark.parametrize("form", ["torchscript", "exported"])
def test_features_are_those_of_the_network(tmp_path: Path, kind: str, form: str) -> None:
    net, inputs, width = _network(kind)
    data = _scripted(net) if form == "torchscript" else _exported(net.eval(), inputs)
    encode = _load(tmp_path, data, inputs, width, form)
    x = _columns(17, int(np.prod(inputs)))
    with torch.no_grad():
        expected = net.eval().double()(torch.from_numpy(x).reshape(17, *inputs)).numpy()
    found = encode(x)
    assert found.dtype == np.float64
    assert found.shape == (17, width)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["mlp", "convolution"])
@pytest.mark.parametrize("form", ["torchscript", "exported"])
def test_a_records_features_depend_on_it_alone_to_the_last_bit(tmp_path: Path, kind: str, form: str) -> None:
    """The first, tenth and last place of a batch, other neighbours, one record alone, another process's thread count."""
    net, inputs, width = _network(kind)
    data = _scripted(net) if form == "torchscript" else _exported(net.eval(), inputs)
    encode = _load(tmp_path, data, inputs, width, form)
    x = _columns(40, int(np.prod(inputs)))
    whole = encode(x)
    order = np.random.default_rng(1).permutation(40)
    assert encode(x[order]).tobytes() == whole[order].tobytes()
    assert encode(np.asfortranarray(x)).tobytes() == whole.tobytes()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        again = _load(tmp_path, data, inputs, width, form)
        for row in (0, 1, 2, 3, 39):
            assert again(x[row : row + 1]).tobytes() == whole[row : row + 1].tobytes()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_random_programs_draw_the_same_for_every_record_and_leave_the_generator_alone(tmp_path: Path) -> None:
    encode = _load(tmp_path, _scripted(_Random()), (4,), 4)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    found = encode(np.zeros((3, 4)))
    assert torch.equal(torch.rand(2), expected)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


@pytest.mark.parametrize(
    "data",
    [_scripted(_Counter()), _scripted(_Integer()), _traced(_Counter(), (4,))],
    ids=["buffer", "integer", "traced buffer"],
)
def test_a_program_with_state_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"encoder\.pt: It keeps values between records"):
        _load(tmp_path, data, (4,), 4)


def test_an_exported_program_with_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="keeps values between records"):
        _load(tmp_path, _exported(_Counter(), (4,)), (4,), 4, "exported")


def test_what_a_program_keeps_of_one_record_reaches_no_other(tmp_path: Path) -> None:
    """Its first run on a large record, which no made-up record provokes, is where it shows; that record is left out."""
    data = _scripted(_Sly())
    raw = torch.jit.load(io.BytesIO(data))
    large = np.full(4, 0.9)
    assert raw(torch.full((1, 4), 0.9)).tolist() != raw(torch.full((1, 4), 0.9)).tolist()  # it does keep something
    encode = _load(tmp_path, data, (4,), 4)
    x = np.stack([np.full(4, 0.1), large, np.full(4, 0.2), large])
    found = encode(x)
    assert np.isnan(found[[1, 3]]).all()
    np.testing.assert_allclose(found[[0, 2]], x[[0, 2]], rtol=1e-6)
    assert np.isnan(encode(x[1:2])).all()


def test_a_record_on_which_the_program_fails_is_invalid_and_nothing_raises(tmp_path: Path) -> None:
    encode = _load(tmp_path, _scripted(_Fragile()), (3,), 3)
    x = np.array([[0.1, 0.1, 0.1], [0.9, 0.0, 0.0], [-0.85, 0.0, 0.0], [0.0, -0.95, 0.0], [0.0, -0.9, 0.0], [0.1, 0.1, 0.1]])
    found = encode(x)
    assert np.isnan(found[[1, 2, 3, 4]]).all()
    np.testing.assert_allclose(found[0], np.log(1.0), atol=1e-6)
    assert found[0].tobytes() == found[5].tobytes()


def test_the_last_answer_is_remembered_and_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = _load(tmp_path, _scripted(_network("mlp")[0]), (20,), 5)
    x = _columns(4, 20)
    first = encode(x)
    expected = first.copy()
    first[:] = 0.0
    run = encode._run
    monkeypatch.setattr(encode, "_run", lambda row: pytest.fail("ran again"))
    assert np.array_equal(encode(x), expected)
    assert np.array_equal(encode(x[[2, 0, 2]]), expected[[2, 0, 2]]), "record by record"
    monkeypatch.setattr(encode, "_run", run)
    monkeypatch.setattr(encoders, "REMEMBERED", 20)
    for _ in range(2):
        assert np.array_equal(encode(np.vstack([_columns(7, 20)[4:], x])), np.vstack([encode(_columns(7, 20)[4:]), expected]))
        assert len(encode._known) <= 7, "no more than fit are remembered"


@pytest.mark.parametrize(
    ("data", "inputs", "width", "message"),
    [
        (b"no archive", (4,), 4, "cannot be read as torchscript"),
        (b"", (4,), 4, "encoder.pt is empty"),
        (_scripted(_Printing()), (4,), 4, "prints"),
        (_scripted(_Mlp()), (21,), 5, r"does not run on one record of shape \(1, 21\)"),
        (_scripted(_Mlp()), (20,), 6, "makes 5 features; the study's encoder.width is 6"),
        (_scripted(nn.Flatten(0)), (4,), 4, "gives no row"),
    ],
    ids=["text", "empty", "print", "shape", "width", "no row"],
)
def test_an_unfit_program_is_refused_with_its_file(
    tmp_path: Path, data: bytes, inputs: tuple[int, ...], width: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        _load(tmp_path, data, inputs, width)
    assert "encoder.pt" in caught.value.message
    assert caught.value.advice


def test_a_double_program_does_not_run_on_float32(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="float32"):
        _load(tmp_path, _scripted(_Mlp().double()), (20,), 5)


def test_integers_are_no_features(tmp_path: Path) -> None:
    class Whole(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.int64)

    with pytest.raises(ConfigurationError, match="gives no row of floating-point features"):
        _load(tmp_path, _traced(Whole(), (4,)), (4,), 4)


def _with_member(data: bytes, name: str, content: bytes, *, replace: bool = False) -> bytes:
    """The archive with one member more, or with other content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        root = old.namelist()[0].split("/")[0]
        for item in old.namelist():
            if not (replace and item == f"{root}/{name}"):
                new.writestr(item, old.read(item))
        new.writestr(f"{root}/{name}", content)
    return buffer.getvalue()


class _Bomb:
    ran = False

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("import sys; sys.modules['veilsum_bomb'] = sys",))


@pytest.fixture(scope="module")
def exported() -> bytes:
    return _exported(_Mlp().eval(), (20,))


def test_another_formats_program_is_refused(tmp_path: Path, exported: bytes) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read as torchscript"):
        _load(tmp_path, exported, (20,), 5)


def _hostile_archive(data: bytes, what: str) -> tuple[bytes, str]:
    bomb = pickle.dumps(_Bomb())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        root = archive.namelist()[0].split("/")[0]
        config = json.loads(archive.read(f"{root}/data/weights/model_weights_config.json"))
        constants = json.loads(archive.read(f"{root}/data/constants/model_constants_config.json"))
        model = json.loads(archive.read(f"{root}/models/model.json"))
    next(iter(config["config"].values()))["use_pickle"] = True
    payload = next(iter(config["config"].values())) | {"use_pickle": True, "path_name": "opaque_obj_0"}
    constants["config"]["x"] = payload
    model["graph_module"]["note"] = {"as_expr": {"expr_str": "__import__('os')"}}

    def replaced(name: str, value: object) -> bytes:
        return _with_member(data, name, json.dumps(value).encode(), replace=True)

    found = {
        "library": (
            _with_member(data, "data/aotinductor/model/model.so", b"\x7fELF"),
            "does not belong to a plain",
        ),
        "opaque object": (
            _with_member(data, "data/constants/opaque_obj_0", bomb),
            "does not belong to a plain",
        ),
        "pickled weight": (replaced("data/weights/model_weights_config.json", config), "pickled objects"),
        "pickled constant": (replaced("data/constants/model_constants_config.json", constants), "pickled objects"),
        "symbolic": (replaced("models/model.json", model), "symbolic"),
        "sample inputs": (_with_member(data, "data/sample_inputs/model.pt", bomb, replace=True), "cannot be read as exported"),
    }
    return found[what]


@pytest.mark.parametrize(
    "what", ["library", "opaque object", "pickled weight", "pickled constant", "symbolic", "sample inputs"]
)
def test_an_exported_archive_with_more_than_tensors_is_never_opened(
    tmp_path: Path, what: str, exported: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, message = _hostile_archive(exported, what)
    monkeypatch.setattr(torch.export, "load", lambda *_, **__: pytest.fail("it was opened"))
    with pytest.raises(ConfigurationError, match=message):
        _load(tmp_path, data, (20,), 5, "exported")
    assert "veilsum_bomb" not in sys.modules


def test_the_untouched_rewritten_archive_is_read(tmp_path: Path) -> None:
    """The control of the test above: rewriting alone refuses nothing."""
    net = _network("mlp")[0].eval()
    data = _exported(net, (20,))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        root = archive.namelist()[0].split("/")[0]
        same = archive.read(f"{root}/models/model.json")
    again = _with_member(data, "models/model.json", same, replace=True)
    x = _columns(3, 20)
    assert np.array_equal(_load(tmp_path, again, (20,), 5, "exported")(x), _load(tmp_path, data, (20,), 5, "exported")(x))


def test_training_mode_and_symbolic_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="training mode"):
        _load(tmp_path, _exported(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train(), (4,)), (4,), 4, "exported")
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(nn.Linear(4, 3), (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    with pytest.raises(ConfigurationError, match="symbolic"):
        _load(tmp_path, buffer.getvalue(), (4,), 3, "exported")


def test_the_hash_is_checked_before_anything_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = _scripted(_Mlp())
    path = tmp_path / "encoder.pt"
    path.write_bytes(data + b" ")
    monkeypatch.setattr(torch.jit, "load", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(ConfigurationError, match="its SHA-256 is") as caught:
        load_encoder(path, _declared(data, (20,), 5))
    assert hashlib.sha256(data).hexdigest() in caught.value.message
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_encoder(tmp_path / "none.pt", _declared(data, (20,), 5))


def test_an_encoder_is_found_by_its_hash_whatever_its_name(tmp_path: Path) -> None:
    data, other = _scripted(_network("mlp")[0]), _scripted(_Fragile())
    for name, content in (("a.pt", other), ("b.pt", data)):
        (tmp_path / name).write_bytes(content)
    configured = {name: EncoderConfig(path=tmp_path / f"{name}.pt") for name in ("a", "missing", "b")}
    assert find_encoder(configured, _declared(data, (20,), 5))(np.zeros((1, 20))).shape == (1, 5)
    assert file_digest(tmp_path / "b.pt") == hashlib.sha256(data).hexdigest()
    with pytest.raises(ConfigurationError, match="No encoder has the SHA-256") as caught:
        find_encoder(configured, _declared(b"x", (20,), 5))
    assert hashlib.sha256(other).hexdigest() in caught.value.message
    assert "missing" in caught.value.message
    with pytest.raises(ConfigurationError, match="none is configured"):
        find_encoder({}, _declared(data, (20,), 5))


def test_paths_of_encoders_are_relative_to_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "participant.toml"
    path.write_text(
        'coordinator = "c.example:8461"\n[datasets.d]\npath = "d.csv"\n[encoders.resnet]\npath = "encoders/resnet.pt"\n'
    )
    assert load_participant_config(path).encoders["resnet"].path == tmp_path / "encoders" / "resnet.pt"
    path.write_text('coordinator = "c.example:8461"\n[datasets.d]\npath = "d.csv"\n[encoders.resnet]\nfile = "x"\n')
    with pytest.raises(ConfigurationError, match=r"encoders\.resnet\.path: is missing"):
        load_participant_config(path)


def test_the_sites_check_shows_each_encoders_hash(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"anything")
    path = tmp_path / "participant.toml"
    path.write_text(
        'coordinator = "127.0.0.1:1"\n[datasets.d]\npath = "d.csv"\n[encoders.a]\npath = "a.pt"\n[encoders.b]\npath = "b.pt"\n'
    )
    checks = {item.check: item for item in SiteCheck(load_participant_config(path), lambda: 1).run()}
    assert checks["encoder a"].status is CheckOutcome.OK
    assert hashlib.sha256(b"anything").hexdigest() in checks["encoder a"].detail
    assert checks["encoder b"].status is CheckOutcome.FAILED
    assert "b.pt" in checks["encoder b"].detail


def test_columns_of_another_width_are_a_misuse(tmp_path: Path) -> None:
    encode = _load(tmp_path, _scripted(_Mlp()), (20,), 5)
    with pytest.raises(Misuse, match="takes 20 values"):
        encode(np.zeros((2, 19)))
    assert encode(np.zeros((0, 20))).shape == (0, 5)


def test_bounds_of_a_declared_program() -> None:
    good = _declared(b"", (1, 4, 10), 6)
    assert good.size == 40
    for changes in (
        {"inputs": ()},
        {"inputs": (2**11, 2**10)},
        {"inputs": (0,)},
        {"width": 0},
        {"width": 4097},
        {"sha256": "0" * 63},
        {"format": "pickle"},
    ):
        with pytest.raises(ValidationError):
            Program.model_validate(good.model_dump() | changes)
    assert _declared(b"", (2**10, 2**10), 1).size == MAX_INPUTS


@given(st.integers(1, 5), st.integers(1, 7), st.integers(0, 2**32))
def test_a_projections_digest_is_of_every_bit(width: int, inputs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, offset = rng.standard_normal((width, inputs)), rng.standard_normal(width)
    declared = Projection(sha256=projection_digest(matrix, offset), inputs=inputs, width=width)
    check_projection(declared, np.asfortranarray(matrix), offset.copy())
    other = matrix.copy()
    other[-1, -1] = np.nextafter(other[-1, -1], np.inf)
    for wrong in ((other, offset), (matrix, offset + 1e-9), (matrix.T.reshape(inputs, width)[:, :1], offset)):
        if wrong[0].tobytes() == matrix.tobytes() and wrong[1].tobytes() == offset.tobytes():
            continue
        with pytest.raises(HostileInput):
            check_projection(declared, *wrong)


def test_a_projections_digest_follows_its_description() -> None:
    """Written out by hand: label, then lengths and bytes of the three parts."""
    matrix, offset = np.array([[1.0, -2.5, 3.0]]), np.array([0.25])
    state = hashlib.sha256()
    parts = (
        b"veilsum/1/projection",
        (1).to_bytes(8, "little") + (3).to_bytes(8, "little"),
        b"".join(np.float64(value).tobytes() for value in (1.0, -2.5, 3.0)),
        np.float64(0.25).tobytes(),
    )
    for part in parts:
        state.update(len(part).to_bytes(8, "big") + part)
    assert projection_digest(matrix, offset) == state.hexdigest()


@pytest.mark.parametrize(
    ("matrix", "offset"),
    [
        (np.zeros((2, 3), dtype=np.float32), np.zeros(2)),
        (np.zeros((2, 3)), np.zeros(3)),
        (np.zeros(3), np.zeros(3)),
        (np.full((2, 3), np.nan), np.zeros(2)),
        (np.zeros((0, 3)), np.zeros(0)),
        (np.zeros((4097, 1)), np.zeros(4097)),
    ],
)
def test_no_digest_of_what_is_no_projection(matrix: np.ndarray, offset: np.ndarray) -> None:
    with pytest.raises(HostileInput):
        projection_digest(matrix, offset)
