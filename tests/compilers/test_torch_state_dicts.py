"""State dicts of quantized modules: the names of parts in them, and what is loaded from them and from files."""

import copy
import importlib
import io
import itertools

import pytest

import dlfp4
from dlfp4 import checkpoints, spellings

from ..support.capsules import framework
from ..support.torch_models import QUANTIZED, Model, model, quantized_names
from ..support.torch_tensors import randn

torch = framework("torch")
dt = importlib.import_module("dlfp4.torch")
F = torch.nn.functional


STORED = sorted({(name, row.convention) for row in spellings.SPELLINGS if row.convention for name in row.formats})


def test_a_layer_loads_its_own_state_dict():
    """Also where a convention has a tensor of no layer beside the parts."""
    layer, other = (dt.Linear(128, 64, format="fp8_e4m3", convention="stable-diffusion") for _ in range(2))
    layer.weight.copy_(dt.quantize(torch.randn(64, 128), "fp8_e4m3"))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight.dequantize(), layer.weight.dequantize())


CONVENTIONS = {
    (None, "nvfp4"): ["weight", "weight_scale", "weight_scale_2"],
    (None, "mxfp6_e2m3"): ["weight", "weight_scale"],
    (None, "uint4_g32"): ["weight", "weight_scale", "weight_zero_points"],
    ("compressed-tensors", "uint4_g32"): ["weight_packed", "weight_scale", "weight_shape", "weight_zero_point"],
    ("modelopt", "nvfp4"): ["weight", "weight_scale", "weight_scale_2"],
    ("modelopt", "nvfp4_16x16"): ["weight", "weight_scale", "weight_scale_2"],  # looks like nvfp4
    ("compressed-tensors", "nvfp4"): ["weight_global_scale", "weight_packed", "weight_scale"],
    ("compressed-tensors", "fp8_row"): ["weight", "weight_scale"],
    ("deepseek", "fp8_128x128"): ["weight", "weight_scale_inv"],
    ("mlx", "mxfp4"): ["scales", "weight"],
}


@pytest.mark.parametrize(("convention", "format"), CONVENTIONS)
def test_state_dicts_have_the_names_of_conventions(convention, format):
    weight = randn(128, 128)
    layer = torch.nn.Linear(128, 128, bias=False)
    layer.weight = torch.nn.Parameter(weight)
    outer = torch.nn.Sequential(dt.quantize_(layer, format, convention=convention))
    state = outer.state_dict()
    assert sorted(state) == [f"0.{name}" for name in CONVENTIONS[convention, format]]
    assert all(type(part) is torch.Tensor for part in state.values())
    if convention:
        expected = checkpoints.split_parts({"0.weight": layer.weight.to_dlfp4()}, convention)
        assert {name: part.dtype.name for name, part in expected.items()} == {
            name: str(part.dtype).removeprefix("torch.") for name, part in state.items()
        }
    other = torch.nn.Sequential(dt.Linear(128, 128, bias=False, format=format, convention=convention))
    other.load_state_dict(state)
    assert other[0].weight.format == format
    assert torch.equal(other[0].weight.dequantize(), layer.weight.dequantize())
    file = io.BytesIO()
    torch.save(outer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file)
    other.load_state_dict(loaded, assign=True)
    assert torch.equal(other[0].weight.dequantize(), layer.weight.dequantize())


@pytest.mark.parametrize(
    ("format", "convention"),
    [
        ("int4_row", "compressed-tensors"),
        ("uint4_row", "compressed-tensors"),
        ("uint4_row", "gptq"),
        ("uint4_row", "awq"),
    ],
)
@pytest.mark.parametrize("depth", [32, 128, 256])
def test_rows_that_are_one_group(format, convention, depth):
    """Files of a scale a row are those of groups as long as rows; a model has what it was quantized to."""

    def made():
        return dt.quantize_(torch.nn.Sequential(torch.nn.Linear(depth, 64)), format, convention=convention, include="*")

    first, second = made(), made()
    second.load_state_dict(first.state_dict())
    assert second[0].weight.format == format
    assert torch.equal(second[0].weight.dequantize(), first[0].weight.dequantize())


ROWS = dlfp4.Recipe(global_scale_per="row")
UNFIT = {  # the format of a layer, how a weight was quantized, and what differs
    "a scale a row": ("nvfp4", ("nvfp4", ROWS), r"weight_scale_2 is float32 \(32,\), expected float32 \(\), for nvfp4"),
    "16-bit scales": (
        "int4_g32", ("int4_g32", dlfp4.Recipe(scale_dtype="bfloat16")),
        r"weight_scale is bfloat16 \(32, 2\), expected float32 \(32, 2\), for int4_g32",
    ),
    "other groups": ("int4_g32", ("int4_g64", None), r"weight_scale is float32 \(32, 1\), expected float32 \(32, 2\)"),
    "no zero points": ("uint4_g32", ("int4_g32", None), r"weight_zero_points is absent, expected uint8 \(32, 2\)"),
    "zero points": ("int4_g32", ("uint4_g32", None), r"weight_zero_points is uint8 \(32, 2\), expected absent"),
}  # fmt: skip


@pytest.mark.parametrize("what", UNFIT)
@pytest.mark.parametrize("strict", [True, False])
def test_parts_that_do_not_fit_are_named(what, strict):
    """And nothing is loaded: PyTorch itself would compare the shape of codes with that of values."""

    def layer(format, recipe=None):
        return dt.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 32)), format, recipe=recipe, include="*")

    own, other, told = UNFIT[what]
    loads = layer(own)
    before = loads[0].weight.dequantize()
    with pytest.raises(RuntimeError, match=rf"0\.{told}.* by the same format and recipe, or load a Sc") as caught:
        loads.load_state_dict(layer(*other).state_dict(), strict=strict)
    assert not any(word in str(caught.value) for word in ("Unexpected", "mismatch"))
    assert torch.equal(loads[0].weight.dequantize(), before)


@pytest.mark.parametrize("convention", [None, "mlx", "compressed-tensors"])
def test_what_has_no_global_scale_is_saved_with_one(convention):
    """As MLX has it: the parts that a module gives after it has loaded such are those for which others look."""
    theirs, ours, other = (
        dt.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 64)), "nvfp4", convention=name)
        for name in ("mlx", None, convention)
    )
    ours.load_state_dict(theirs.state_dict())
    other.load_state_dict(ours.state_dict())
    assert torch.equal(other[0].weight.dequantize(), theirs[0].weight.dequantize())


def test_what_is_no_tensor_is_named():
    layer, codes = dt.Linear(64, 32, format="nvfp4", bias=False), torch.zeros(32, 32, dtype=torch.uint8)
    for wrong in ([1], None, codes.numpy()):
        with pytest.raises(RuntimeError, match=rf"expected torch.Tensor .* but received .*{type(wrong).__name__}"):
            layer.load_state_dict({"weight": wrong})
    with pytest.raises(RuntimeError, match=r"weight_scale is a list, expected float8_e4m3fn \(32, 4\)"):
        layer.load_state_dict({"weight": codes, "weight_scale": [1]})


@pytest.mark.parametrize(("convention", "format"), CONVENTIONS)
@pytest.mark.parametrize("way", ["assign", "to_empty"])
def test_models_without_values(convention, format, way):
    """On "meta", as large models are made before they are loaded."""
    made = dt.quantize_(torch.nn.Sequential(torch.nn.Linear(128, 256)), format, include="*", convention=convention)
    with torch.device("meta"):
        other = torch.nn.Sequential(torch.nn.Linear(128, 256))
    assert dt.quantize_(other, format, include="*", convention=convention) is other
    weight = other[0].weight
    assert (weight.is_meta, weight.format, weight.shape) == (True, format, (256, 128))
    assert {part: (x.shape, x.dtype) for part, x in weight_parts(weight)} == {
        part: (x.shape, x.dtype) for part, x in weight_parts(made[0].weight)
    }
    if way == "to_empty":
        other.to_empty(device="cpu").load_state_dict(made.state_dict())
    else:
        other.load_state_dict(made.state_dict(), assign=True)
    x = randn(2, 128)
    assert torch.equal(other(x), made(x))


def weight_parts(weight):
    """Those that operations read."""
    parts = {name: getattr(weight, name) for name in ("elements", "scales", "global_scale", "offsets")}
    return [(name, part) for name, part in parts.items() if part is not None]


def test_a_whole_model_without_values():
    """With experts, fused layers and tied weights."""
    made, ids = dt.quantize_(model(), "nvfp4"), torch.arange(8)[None]
    with torch.device("meta"):
        other = torch.nn.Module.to_empty(Model(), device="meta")
    dt.quantize_(other, "nvfp4")
    assert quantized_names(other) == QUANTIZED
    other.load_state_dict(made.state_dict(), assign=True)
    assert torch.equal(other(ids), made(ids))


@pytest.mark.parametrize(("convention", "format"), CONVENTIONS)
@pytest.mark.parametrize("full", [False, True])
def test_state_dicts_of_distributed_checkpoints(convention, format, full):
    """They look up each name among the attributes of its module."""
    distributed = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    options = distributed.StateDictOptions(full_state_dict=full)
    made, other = (torch.nn.Sequential(torch.nn.Linear(128, 128)) for _ in range(2))
    for module in (made, other):
        dt.quantize_(module, format, include="*", convention=convention)
    state = distributed.get_model_state_dict(copy.deepcopy(made), options=options)
    assert state.keys() == made.state_dict().keys()
    distributed.set_model_state_dict(other, state, options=options)
    x = randn(2, 128)
    assert torch.equal(other(x), made(x))


@pytest.mark.parametrize(("convention", "format"), CONVENTIONS)
@pytest.mark.parametrize("values_given", [False, True])
def test_state_dicts_without_values(convention, format, values_given):
    """They have the names, shapes and types that values will have; all that is absent is named."""

    def made(device):
        return torch.nn.Sequential(torch.nn.Linear(128, 128, device=device))

    real = dt.quantize_(made("cpu"), format, include="*", convention=convention).state_dict()
    if values_given:  # a weight of zeros
        other = torch.nn.Sequential(dt.Linear(128, 128, format=format, convention=convention))
    else:
        other = dt.quantize_(made("meta"), format, include="*", convention=convention)
    state = other.state_dict()
    assert {name: x.shape for name, x in state.items()} == {name: x.shape for name, x in real.items()}
    if not values_given:  # the constructor knows no recipe, by which some conventions have other types of scales
        assert all(part.is_meta for part in state.values())
        assert [x.dtype for x in state.values()] == [x.dtype for x in real.values()]
    missing = other.load_state_dict({}, strict=False).missing_keys
    assert set(missing) == real.keys() | {"0.weight"}


def test_safetensors_loads_tied_weights(tmp_path):
    """It leaves all but one of tied weights out, and looks for the names of the others among those that are missing."""
    safetensors = framework("safetensors.torch")
    layers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        layer[1].weight = layer[0].weight
        layers.append(dt.quantize_(layer, "nvfp4"))
    safetensors.save_model(layers[0], str(tmp_path / "model.safetensors"))
    assert safetensors.load_model(layers[1], str(tmp_path / "model.safetensors")) == (set(), [])
    x = randn(2, 64)
    assert torch.equal(layers[1](x), layers[0](x))


def test_state_dicts_of_all_of_a_model():
    made = dt.quantize_(model(), "nvfp4", convention="modelopt")
    state = made.state_dict()
    assert "experts.down_proj_scale" in state
    other = dt.quantize_(Model(), "nvfp4")
    other.load_state_dict(state)
    ids = torch.arange(8)[None]
    assert torch.equal(other(ids), made(ids))
    twin = copy.deepcopy(made)
    twin.load_state_dict(made.state_dict())
    assert torch.equal(twin(ids), made(ids))
    del state["self_attn.q_proj.weight_scale"]
    with pytest.raises(RuntimeError, match=r"weight_scale|q_proj\.weight"):
        other.load_state_dict(state)


def test_a_checkpoint_of_the_command_line(tmp_path):
    made = model()
    tensors = {name: x.detach() for name, x in made.named_parameters()}
    checkpoints.save(tmp_path / "float.safetensors", tensors, {"format": "pt"})
    checkpoints.quantize_model(
        tmp_path / "float.safetensors",
        tmp_path / "small.safetensors",
        "nvfp4",
        convention="compressed-tensors",
        axis=-1,
    )
    parts = checkpoints.load(tmp_path / "small.safetensors", join=False)
    state = {name: part.to_torch() for name, part in parts.items()} | {"lm_head.weight": tensors["embed_tokens.weight"]}
    other = dt.quantize_(Model(), "nvfp4")
    other.load_state_dict(state)
    dt.quantize_(made, "nvfp4", include=["self_attn", "experts"], recipe=None, convention="compressed-tensors")
    ids = torch.arange(8)[None]
    assert torch.equal(other(ids), made(ids))


def expert_by_expert(names, seed=0, experts=3):
    """As files of transformers' models have them, whose classes have stacks."""
    gate, up, down = names
    for number in range(experts):
        for name in (gate, up, down):
            seed += 1
            yield f"experts.{number}.{name}.weight", randn(256, 256, seed=seed)


def stacks(device="cpu"):
    experts = torch.nn.Module()
    experts.gate_up_proj = torch.nn.Parameter(randn(3, 512, 256).to(device))
    experts.down_proj = torch.nn.Parameter(randn(3, 256, 256).to(device))
    return torch.nn.ModuleDict({"experts": experts})


def turned_stacks():
    made = stacks()
    for name, x in list(made.experts.named_parameters()):
        setattr(made.experts, name, torch.nn.Parameter(x.detach().mT.contiguous()))
    return made


@pytest.mark.parametrize(("name", "convention"), [*((name, None) for name in sorted(dlfp4.formats())), *STORED])
def test_stacks_from_files_with_expert_by_expert(tmp_path, name, convention):
    names = ("gate_proj", "up_proj", "down_proj") if convention else ("w1", "w3", "w2")
    file, target = tmp_path / "float.safetensors", tmp_path / "small.safetensors"
    checkpoints.save(file, dict(expert_by_expert(names)))
    checkpoints.quantize_model(file, target, name, convention=convention, include="*")
    parts = checkpoints.load(target, join=False)
    parts = {key: part.view("uint8") if "float6" in part.dtype.name else part for key, part in parts.items()}
    state, whole = {key: part.to_torch() for key, part in parts.items()}, checkpoints.load(target)
    if dlfp4.formats()[name].block is None:  # one scale in all
        with pytest.raises(ValueError, match=r"experts\.gate_up_proj: its matrices have scales of their own"):
            dt.quantize_(stacks(), name).load_state_dict(state)
        return
    want = {key: q.dequantize().to_torch() for key, q in whole.items()}
    models = [dt.quantize_(make(), name, include="*") for make in (stacks, turned_stacks)]
    for module, how in ((models[0], {}), (models[1], {}), (dt.quantize_(stacks("meta"), name), {"assign": True})):
        module.load_state_dict(dict(state), **how)
        gate_up, down = (getattr(module.experts, each) for each in ("gate_up_proj", "down_proj"))
        if gate_up.turned:
            gate_up, down = gate_up.mT, down.mT
        for k in range(3):
            gate, up, own = (want[f"experts.{k}.{each}.weight"] for each in names)
            assert torch.equal(gate_up[k].dequantize(torch.float32), torch.cat([gate, up])), k
            assert torch.equal(down[k].dequantize(torch.float32), own), k


def test_experts_that_do_not_make_a_stack():
    names = ("gate_proj", "up_proj", "down_proj")
    state = {}
    for key, x in expert_by_expert(names):  # as of a tool that gives each a scale of its own
        q = dlfp4.quantize(x * (1.3 if "up" in key else 1), "nvfp4")
        state |= {part: each.to_torch() for part, each in checkpoints.split_parts({key: q}, "modelopt").items()}
    with pytest.raises(ValueError, match=r"experts\.gate_up_proj.* \d+ of 8192 blocks would be rounded"):
        dt.quantize_(stacks(), "nvfp4").load_state_dict(state)
    lacking = {}
    for key, x in expert_by_expert(names):
        if key != "experts.2.up_proj.weight":
            q = dlfp4.quantize(x, "mxfp4")
            lacking |= {part: each.to_torch() for part, each in checkpoints.split_parts({key: q}, "modelopt").items()}
    with pytest.raises(RuntimeError, match=r"(?s)Missing key.*gate_up_proj.*Unexpected key.*experts\.0\.gate_proj"):
        dt.quantize_(stacks(), "mxfp4").load_state_dict(lacking)


def across(seed=0):
    """Stacks of experts as gpt-oss and Llama-4 have them: (experts, in, out)."""
    experts = torch.nn.Module()
    experts.gate_up_proj = torch.nn.Parameter(randn(3, 128, 256, seed=seed))
    experts.down_proj = torch.nn.Parameter(randn(3, 128, 128, seed=seed + 1))
    return torch.nn.ModuleDict({"experts": experts})


@pytest.mark.parametrize("format", sorted(dlfp4.formats()))
def test_stacks_that_lie_across_from_files(tmp_path, format):
    """dlfp4's own files have their blocks along columns, those of all experts one after the other."""
    tensors = {name: x.detach() for name, x in across().named_parameters()}
    checkpoints.save(tmp_path / "float.safetensors", tensors)
    checkpoints.quantize_model(tmp_path / "float.safetensors", tmp_path / "small.safetensors", format)
    whole = checkpoints.load(tmp_path / "small.safetensors")
    parts = checkpoints.load(tmp_path / "small.safetensors", join=False)
    parts = {name: part.view("uint8") if "float6" in part.dtype.name else part for name, part in parts.items()}
    states = [
        {name: dt.ScaledTensor.from_dlfp4(q) for name, q in whole.items()},
        {name: part.to_torch() for name, part in parts.items()},
    ]
    for state, way in itertools.product(states, ({}, {"assign": True})):
        made = dt.quantize_(across(seed=2), format)
        made.load_state_dict(dict(state), **way)
        for name, q in whole.items():
            weight = made.get_parameter(name)
            assert torch.equal(weight.dequantize(torch.float32), q.dequantize().to_torch()), name
            if state is states[1] or not way:
                x, ends = randn(6, 128), torch.tensor([2, 2, 6])
                assert weight.turned
                assert F.grouped_mm(x, weight, offs=ends.int()).shape == (6, q.shape[2])


@pytest.mark.parametrize(("name", "convention"), [("nvfp4", None), *STORED])
def test_what_is_loaded_computes_what_was_saved(name, convention):
    """Also where a convention stores reciprocals of global scales, of which some do not come back bit by bit."""
    for seed in range(20 if name == "nvfp4" else 2):
        model, other = (torch.nn.Sequential(torch.nn.Linear(256, 128)) for _ in range(2))
        model[0].weight.data = randn(128, 256, seed=seed)
        dt.quantize_(model, name, include=["*"], convention=convention)
        dt.quantize_(other, name, include=["*"]).load_state_dict(model.state_dict())
        x = randn(4, 256, seed=100 + seed)
        assert torch.equal(other(x), model(x))
