"""``dlfp4.torch.Linear`` and ``quantize_``: which weights, and what the layers compute."""

import copy
import importlib

import pytest

import dlfp4
from dlfp4 import checkpoints, spellings

from ..support.capsules import framework
from ..support.torch_models import QUANTIZED, Model, model, quantized_names
from ..support.torch_tensors import randn

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
F = torch.nn.functional


def test_quantize_takes_what_files_take():
    made, ids = model(), torch.arange(8)[None]
    want = made(ids)
    chosen = checkpoints.selection.choose(dict(made.named_parameters(remove_duplicate=False)), "nvfp4")
    names = [name for name, choice in chosen.items() if choice.quantized]
    assert dt.quantize_(made, "nvfp4") is made
    assert quantized_names(made) == QUANTIZED == names
    assert type(made.self_attn.q_proj) is dt.Linear
    assert made.lm_head.weight is made.embed_tokens.weight
    units = {made.self_attn.get_parameter(f"{name}_proj.weight").global_scale.item() for name in "qkv"}
    assert len(units) == 1
    out = made(ids)
    assert (out - want).norm() < 0.2 * want.norm()
    out.sum().backward()
    assert made.embed_tokens.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match=r"no weight .*\)$"):
        dt.quantize_(made, "nvfp4")


class Mixed(Model):
    """With what loaders of some conventions do not look for: stacks, transposed layers, parameters of other names."""

    def __init__(self):
        super().__init__()
        self.cross_attn = torch.nn.MultiheadAttention(64, 2)
        self.c_fc = torch.nn.Module()
        self.c_fc.weight, self.c_fc.bias = (torch.nn.Parameter(randn(*shape)) for shape in ((64, 128), (128,)))


@pytest.mark.parametrize("include", [None, ["c_fc", "cross_attn"]])
@pytest.mark.parametrize("convention", [None, *spellings.CONVENTIONS])
def test_conventions_keep_what_files_keep(tmp_path, convention, include):
    formats = [name for row in spellings.SPELLINGS if row.convention == convention for name in row.formats]
    format, made = formats[0] if formats else "mxfp4", Mixed()
    file, target = tmp_path / "float.safetensors", tmp_path / "small.safetensors"
    checkpoints.save(file, {name: x.detach() for name, x in made.named_parameters()})
    done = checkpoints.quantize_model(file, target, format, convention=convention, include=include)
    names = [each.name for each in done if each.format]
    dt.quantize_(made, format, include=include, convention=convention)
    assert sorted(quantized_names(made)) == sorted(names)


@pytest.mark.parametrize("recipe", [None, "modelopt"])
def test_zeros_choose_no_global_scale(recipe):
    """Their own, 1, is far above that of the layer beside them, which would vanish under it."""
    layers = torch.nn.ModuleDict({f"{name}_proj": torch.nn.Linear(64, 64, bias=False) for name in ("gate", "up")})
    torch.nn.init.zeros_(layers["gate_proj"].weight)
    torch.nn.init.normal_(layers["up_proj"].weight, std=1e-3)
    alone = dlfp4.quantize(layers["up_proj"].weight.detach(), "nvfp4", recipe=recipe)
    dt.quantize_(layers, "nvfp4", recipe=recipe)
    gate, up = (layers[f"{name}_proj"].weight for name in ("gate", "up"))
    assert gate.global_scale.item() == up.global_scale.item() == alone.global_scale.item()
    assert torch.equal(up.dequantize(), alone.dequantize().to_torch())
    assert not gate.dequantize().any()


def test_what_is_no_module_and_what_has_no_weights():
    for wrong in (None, torch.ones(64, 64)):
        with pytest.raises(TypeError, match=r"module is of type .*; expected a torch\.nn\.Module"):
            dt.quantize_(wrong, "nvfp4")
    with pytest.raises(ValueError, match=r"no weight of ReLU is quantized to nvfp4 \(it has no parameters\)"):
        dt.quantize_(torch.nn.ReLU(), "nvfp4")


def test_errors_name_no_option_of_files():
    model = torch.nn.ModuleDict({"embed_tokens": torch.nn.Embedding(64, 64)})
    with pytest.raises(ValueError, match=r"\(embed_tokens\.weight: embedding\)$"):
        dt.quantize_(model, "nvfp4")


def test_include_is_advised_where_it_helps():
    """Of what patterns exclude; not where the shape or the role is the reason."""
    with pytest.raises(ValueError, match=r"0\.weight: 60 elements along axis -1 do not divide .*not a matrix\)$"):
        dt.quantize_(torch.nn.Sequential(torch.nn.Linear(60, 8)), "nvfp4")
    with pytest.raises(ValueError, match=r"\(0\.weight: excluded; .*\); name some in include$"):
        dt.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 8)), "nvfp4", exclude="0")


class Positions(torch.nn.Module):
    """With parameters and buffers that are only added."""

    def __init__(self):
        super().__init__()
        self.pos = torch.nn.Parameter(randn(32, 64))
        self.register_buffer("table_weight", randn(32, 64))
        self.fc = torch.nn.Linear(64, 64)

    def forward(self, x):
        return self.fc(x) + self.pos + self.table_weight


class Bags(torch.nn.Module):
    """With a head that the shape of the embedding tells."""

    def __init__(self):
        super().__init__()
        self.table, self.layer, self.last = (
            torch.nn.EmbeddingBag(256, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, 256),
        )  # fmt: skip

    def forward(self, ids):
        return self.last(self.layer(self.table(ids)))


@pytest.mark.parametrize(
    ("make", "x", "expected"),
    [
        (
            lambda: torch.nn.Sequential(torch.nn.Embedding(64, 64), torch.nn.Linear(64, 64)),
            torch.arange(8),
            ["1.weight"],
        ),
        (Bags, torch.arange(8)[None], ["layer.weight"]),
        (Positions, randn(32, 64), ["fc.weight"]),
    ],
)
def test_what_modules_tell_of_tensors_without_telling_names(make, x, expected):
    made = dt.quantize_(make(), "nvfp4")
    assert quantized_names(made) == expected
    assert made(x).isfinite().all()


def test_tensors_that_are_no_weights_are_named():
    with pytest.raises(ValueError, match=r"\(weight: embedding\)"):
        dt.quantize_(torch.nn.Embedding(64, 64), "nvfp4")
    with pytest.raises(ValueError, match=r"table_weight \(buffer\)"):
        dt.quantize_(Positions(), "nvfp4", include="table_weight")
    assert quantized_names(dt.quantize_(Positions(), "nvfp4", include="pos")) == ["pos"]


@pytest.mark.parametrize(
    ("include", "message"),
    [
        ("lm_head", r"lm_head\.weight \(output head\)"),
        (["q_proj", "embed_tokens"], r"embed_tokens\.weight \(embedding\)"),
        ("*.bias", r"\(1 dimension: not a matrix\)"),
        ("also", r"also\.weight \(tied to one that is kept\)"),
    ],
)
def test_patterns_that_choose_nothing(include, message):
    made = model()
    before = {name: id(tensor) for name, tensor in made.named_parameters(remove_duplicate=False)}
    made.also = torch.nn.Linear(64, 128, bias=False)
    made.also.weight = made.embed_tokens.weight
    with pytest.raises(ValueError, match=f"chooses nothing, as what it matches is kept: .*{message}"):
        dt.quantize_(made, "nvfp4", include=include)
    assert before.items() <= {name: id(x) for name, x in made.named_parameters(remove_duplicate=False)}.items()
    head = torch.nn.Linear(64, 128, bias=False)
    assert dt.quantize_(head, "nvfp4").weight.format == "nvfp4"


def test_include_exclude_and_options():
    made = dt.quantize_(model(), "mxfp4", include="self_attn", exclude=["o_proj", "re:.*v_proj"], activation="int8")
    assert quantized_names(made) == QUANTIZED[:2]
    assert "activation='int8'" in repr(made)
    with pytest.raises(ValueError, match="matches no tensor"):
        dt.quantize_(model(), "mxfp4", include="self_atn")
    layer = torch.nn.Linear(64, 8)
    weight = layer.weight.detach().clone()
    dt.quantize_(layer, "mxfp8_e4m3", recipe=dlfp4.Recipe(scale_rule="rceil"))
    want = dt.quantize(weight, "mxfp8_e4m3", recipe=dlfp4.Recipe(scale_rule="rceil"))
    assert torch.equal(layer.weight.dequantize(), want.dequantize())


def test_linear_is_the_product():
    x, weight, bias = randn(2, 3, 64), randn(8, 64, seed=1), randn(8, seed=2)
    layer = dt.Linear(64, 8, format="nvfp4", activation="int8")
    assert not layer(x).any()
    layer.load_state_dict({"weight": dt.quantize(weight, "nvfp4"), "bias": bias})
    w = dlfp4.quantize(weight, "nvfp4")
    assert torch.equal(layer(x), dlfp4.matmul(x, w.mT, activation="int8").to_torch() + bias)
    layer.activation = "mxfp8"
    assert torch.equal(layer(x), dlfp4.matmul(dlfp4.quantize(x, "mxfp8_e4m3"), w.mT).to_torch() + bias)
    layer.activation = None
    assert torch.equal(layer(x), F.linear(x, layer.weight, bias))
    with pytest.raises(ValueError, match="expected one of"):
        dt.Linear(64, 8, format="nvfp4", convention="modelopts")
    with pytest.raises(ValueError, match="gptq stores no fp8_e4m3; it has uint4_g32"):
        dt.Linear(64, 8, format="fp8_e4m3", convention="gptq")
    with pytest.raises(ValueError, match="activation='fp8': expected None or one of"):
        dt.Linear(64, 8, format="nvfp4", activation="fp8")
    with pytest.raises(ValueError, match="activation='fp8': expected None or one of"):
        dt.quantize_(torch.nn.Linear(64, 8), "nvfp4", activation="fp8")


@pytest.mark.parametrize(
    ("features", "format", "words"),
    [
        ((60, 8), "nvfp4", "into blocks of nvfp4; choose in_features that is a multiple of 16$"),
        ((64, 8), "nvfp4_16x16", "choose in_features that is a multiple of 16, and out_features one of 16$"),
        ((61, 8), "int4_row", "choose in_features that is a multiple of 2$"),
    ],
)
def test_features_that_blocks_do_not_divide(features, format, words):
    with pytest.raises(ValueError, match=words):
        dt.Linear(*features, format=format)


@pytest.mark.parametrize(
    ("features", "format", "activation", "words"),
    [
        (64, "fp8_row", "int8", "'int8' is for weights of FP4 in blocks, .*, and {} is to be fp8_row; pass another"),
        (64, "int4_g32", "int8", "'int8' is for weights of FP4 in blocks, .*, and {} is to be int4_g32; pass another"),
        (
            48,
            "nvfp4",
            "mxfp8",
            "K is 48, and the blocks of mxfp8_e4m3 have 32 elements, in {}; pass activation='fp8_1x",
        ),
    ],
)
def test_activations_that_never_meet_the_weights(features, format, activation, words):
    """Which is said before a weight is replaced."""
    with pytest.raises(ValueError, match=words.format("the weight")):
        dt.Linear(features, 32, format=format, activation=activation)
    made = torch.nn.Sequential(torch.nn.Linear(64, features), torch.nn.Linear(features, 32))
    before = dict(made.named_parameters())
    with pytest.raises(ValueError, match=words.format(r"1\.weight" if features < 64 else r"0\.weight")):
        dt.quantize_(made, format, activation=activation)
    assert [type(layer) for layer in made] == [torch.nn.Linear] * 2
    assert all(parameter is before[name] for name, parameter in made.named_parameters())


def test_activations_are_of_linear_layers_alone():
    """Other modules multiply by decoded weights, whatever `activation` is."""
    stack = torch.nn.Module()
    stack.experts = torch.nn.Parameter(randn(2, 32, 64))
    assert dt.quantize_(stack, "fp8_row", include="experts", activation="int8").experts.format == "fp8_row"


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("format", ["nvfp4", "fp8_row", "uint4_g32"])
def test_layers_are_those_of_pytorch_in_modes(format, bias):
    """The types of results under autocast; traces, which have weights as constants and follow x."""
    layer = torch.nn.Linear(64, 32, bias=bias)
    x, more = randn(3, 64), randn(5, 64, seed=1)
    with torch.autocast("cpu", torch.bfloat16):
        kind = layer(x).dtype
    dt.quantize_(layer, format)
    with torch.autocast("cpu", torch.bfloat16):
        out, same = layer(x), F.linear(x, layer.weight, layer.bias)
    assert out.dtype == same.dtype == kind == torch.bfloat16
    assert torch.equal(out, same)
    with pytest.warns(DeprecationWarning, match=r"torch\.jit\.trace"):
        traced = torch.jit.trace(layer, (x,))
    assert torch.equal(traced(more), layer(more))


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_layers_that_pytorch_computes_as_one():
    """Without gradients an encoder's layer is one operation, which reads its weights itself."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    x = torch.randn(2, 5, 64)
    quantized = dt.quantize_(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), "nvfp4").eval()
    expected = quantized(x)
    with torch.no_grad():
        assert torch.allclose(quantized(x), expected.detach(), atol=1e-4)
    with torch.inference_mode():
        assert torch.allclose(quantized(x), expected.detach(), atol=1e-4)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "LSTMCell"])
def test_recurrent_layers_are_kept(kind):
    """PyTorch's kernels read their weights themselves."""
    with pytest.raises(ValueError, match="recurrent weight"):
        dt.quantize_(getattr(torch.nn, kind)(64, 64), "nvfp4")


@pytest.mark.parametrize("activation", [None, "int8"])
def test_models_in_float64(activation):
    made = dt.quantize_(
        torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 64)), "nvfp4", activation=activation
    )
    x = randn(2, 64)
    expected = made(x)
    wide = copy.deepcopy(made).double()
    assert {p.dtype for p in wide.parameters()} == {torch.float64}
    assert wide(x.double()).dtype == torch.float64
    assert torch.allclose(wide(x.double()).float(), expected, atol=1e-5)
    assert torch.equal(wide.float()(x), expected)
    assert dt.Linear(64, 8, format="nvfp4", dtype=torch.float64)(x.double()).dtype == torch.float64


def test_accelerate_offloads():
    """It makes parameters by their type, and finds tied ones by their memory."""
    accelerate = framework("accelerate")
    made = dt.quantize_(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))), "nvfp4")
    made[2].weight = made[0].weight
    x, device = randn(2, 64), torch.device("cpu")
    expected = made(x)
    whole = dict(made.named_parameters(remove_duplicate=False))
    places = dict.fromkeys("0123", "cpu")
    for offload in (
        lambda m: accelerate.dispatch_model(m, places, main_device="cpu", force_hooks=True, state_dict=whole),
        lambda m: accelerate.cpu_offload(m, device, state_dict=whole),
    ):
        moved = offload(copy.deepcopy(made))
        for _ in range(2):
            assert torch.equal(moved(x), expected)
    assert moved[0].weight.is_meta
    assert isinstance(moved[0].weight, dt.ScaledTensor)


def test_layers_with_hooks_of_accelerate():
    """They keep the layer's forward, which is another one after it."""
    accelerate = framework("accelerate")
    layers = [torch.nn.Sequential(torch.nn.Linear(64, 64)) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    accelerate.dispatch_model(layers[0], {"0": "cpu"}, main_device="cpu", force_hooks=True)
    first, second = (dt.quantize_(layer, "nvfp4", activation="int8") for layer in layers)
    x = randn(2, 64)
    assert torch.equal(first(x), second(x))
    assert not torch.equal(first(x), F.linear(x, second[0].weight, second[0].bias))


def test_averaged_models_carry_quantized_weights():
    swa = pytest.importorskip("torch.optim.swa_utils")
    made = dt.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 64)), "nvfp4")
    average = swa.AveragedModel(made, multi_avg_fn=swa.get_ema_multi_avg_fn(0.5))
    first = made[0].bias.detach().clone()
    for step in (0.0, 2.0):
        with torch.no_grad():
            made[0].bias.add_(step)
        average.update_parameters(made)
    assert torch.equal(average.module[0].weight.dequantize(), made[0].weight.dequantize())
    assert torch.allclose(average.module[0].bias, first + 1)


def test_transposed_layers():
    """As GPT-2 has them: (in, out), which conventions store the other way around."""

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = torch.nn.Parameter(randn(64, 128)), torch.nn.Parameter(torch.zeros(128))

        def forward(self, x):
            return torch.addmm(self.bias, x, self.weight)

    x = randn(2, 64, seed=1)
    for convention in (None, "modelopt"):
        made = torch.nn.ModuleDict({"c_fc": Layer()})
        dt.quantize_(made, "nvfp4", include="c_fc", convention=convention)
        weight = made["c_fc"].weight
        assert (weight.shape, weight.axis) == ((64, 128), -2)
        assert torch.equal(made["c_fc"](x), dlfp4.matmul(x, weight.to_dlfp4()).to_torch())
        other = copy.deepcopy(made)
        other.load_state_dict(made.state_dict())
        assert torch.equal(other["c_fc"](x), made["c_fc"](x))


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "mxfp8_e4m3"])
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("weight", {"c_attn": (64, 192), "c_proj": (64, 64)}),  # GPT-2, whose biases say how they lie
        ("down_proj", {"experts": (2, 64, 64)}),  # gpt-oss, whose gate_up_proj says how stacks lie
    ],
)
def test_transposed_squares(name, shapes, format):
    """A matrix that has the shape of its transpose is not taken for it."""
    model = torch.nn.ModuleDict({layer: torch.nn.Module() for layer in shapes})
    for layer, shape in shapes.items():
        model[layer].register_parameter(name, torch.nn.Parameter(randn(*shape)))
        model[layer].bias = torch.nn.Parameter(torch.zeros(shape[-1]))
    if name == "down_proj":
        model["experts"].gate_up_proj = torch.nn.Parameter(randn(2, 64, 128))
    kept = copy.deepcopy(model)
    dt.quantize_(model, format, include="*", convention="modelopt")
    other = dt.quantize_(copy.deepcopy(kept), format, include="*", convention="modelopt")
    other.load_state_dict(model.state_dict())
    empty = dt.quantize_(copy.deepcopy(kept).to("meta"), format, include="*", convention="modelopt")
    empty.load_state_dict(model.state_dict(), assign=True)
    quantized = {key: each for key, each in model.named_parameters() if isinstance(each, dt.ScaledTensor)}
    assert len(quantized) == 2
    for key, weight in quantized.items():
        assert (weight.axis, weight.turned) == (-2, True)
        values_of = weight.dequantize()
        assert (values_of - kept.get_parameter(key)).abs().max() < 0.3 * values_of.abs().max()
        assert torch.equal(other.get_parameter(key).dequantize(), values_of)
        assert torch.equal(empty.get_parameter(key).dequantize(), values_of)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_torch_script_has_no_form_for_it():
    """Alone, and within another module."""
    layer = dt.Linear(64, 32, format="nvfp4")
    for module in (layer, torch.nn.Sequential(torch.nn.Linear(64, 64), layer)):
        with pytest.raises(NotImplementedError, match=r"no form for a quantized weight; torch\.jit\.trace"):
            torch.jit.script(module)
