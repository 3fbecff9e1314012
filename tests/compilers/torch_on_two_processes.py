"""What test_torch_distributed.py runs in each of two processes: a file to meet at, a number, and names of checks."""

import copy
import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dlfp4
import dlfp4.torch as dt
from dlfp4.operations import Encoding, Prepared

F = torch.nn.functional
ROWWISE = dlfp4.Recipe(global_scale_per="row")
# Format, axis, options: one of each kind whose rows can be cut.
CUT = (
    ("nvfp4", -1, {}),
    ("nvfp4", -1, {"recipe": ROWWISE}),
    ("nvfp4", -1, {"hadamard": 5}),
    ("mxfp4", -2, {}),
    ("mxfp6_e2m3", -1, {}),
    ("mxfp8_e4m3", -1, {}),
    ("mxfp8_e4m3", -2, {}),
    ("nvfp4_16x16", -1, {}),
    ("fp8_128x128", -1, {}),
    ("fp8_row", -1, {}),
    ("fp8_e4m3", -1, {}),
    ("int4_g32", -1, {}),
    ("uint4_g32", -1, {}),
    ("uint4_g32", -2, {}),
)


def values(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Layer(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.bias = torch.nn.Parameter(values(weight.shape[0], seed=2))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def weights():
    for format, axis, options in CUT:
        yield dt.quantize(values(256, 128, seed=1), format, axis=axis, **options)


def parts_of(q):
    ours = q.to_dlfp4()
    parts = (ours.data, ours.scales, ours.global_scale, ours.zero_points, ours.encode_scale)
    return [None if part is None else (part.shape, bytes_of(part)) for part in parts]


def bytes_of(part):
    return part.copy().reshape(-1 if part.ndim else 1).view("uint8").to_numpy().tobytes()


def check_layers(mesh):
    """Forward and backward, twice, for FSDP frees the weight and gathers it again."""
    x = values(4, 128)
    for weight in weights():
        want = weight.dequantize()
        plain, sharded = Layer(weight), fully_shard(Layer(weight), mesh=mesh)
        local = sharded.weight.to_local()
        assert (type(local), local.shape) == (dt.ScaledTensor, (128, 128)), weight
        assert torch.equal(local.dequantize(), want[128 * mesh.get_local_rank() :][:128]), weight
        expected = plain(x)
        for _ in range(2):
            a = x.clone().requires_grad_()
            b = x.clone().requires_grad_()
            made = sharded(a)
            assert torch.equal(made, expected), weight
            made.sum().backward()
            plain(b).sum().backward()
            assert torch.equal(a.grad, b.grad), weight
            assert torch.equal(sharded.bias.grad.full_tensor(), torch.full((256,), 4.0)), weight
            sharded.zero_grad()


def check_a_model(mesh):
    """quantize_, then FSDP layer by layer, in bfloat16, with a stack of experts."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(64, 96), torch.nn.Linear(96, 64)
            self.experts = torch.nn.Parameter(values(2, 64, 64))

        def forward(self, x):
            x = self.second(torch.relu(self.first(x)))
            return sum(F.linear(x, self.experts[k]) for k in range(2))

    def made():
        torch.manual_seed(0)
        return dt.quantize_(Model(), "nvfp4", include="*")

    x = values(3, 64)
    sharded = made()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in (sharded.first, sharded.second, sharded):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    with torch.inference_mode():
        assert torch.equal(sharded(x), made().bfloat16()(x.bfloat16()))
    each = dt.quantize(values(2, 64, 64), "nvfp4", recipe=dlfp4.Recipe(global_scale_per="matrix"))
    stack = torch.nn.Module()
    stack.weight = torch.nn.Parameter(each, requires_grad=False)
    fully_shard(stack, mesh=mesh)
    assert stack.weight.to_local().shape == (1, 64, 64)
    stack.unshard()
    assert parts_of(stack.weight) == parts_of(each)


def check_refusals(mesh):
    def refused(message, weight):
        with pytest.raises(ValueError, match=message):
            fully_shard(Layer(weight), mesh=mesh)(values(4, weight.shape[1]))

    refused("cut through blocks", dt.quantize(values(48, 64), "nvfp4_16x16"))
    refused("not an equal share of its rows", dt.quantize(values(33, 64), "nvfp4"))
    refused("only linear scales lie block by block", dt.quantize(values(256, 64), "nvfp4", scale_layout="128x4"))
    plain = dt.quantize(values(256, 128), "nvfp4")
    facts = Prepared(*(0 for _ in Prepared._fields))._replace(rows=256, columns=128)
    prepared = copy.copy(plain)
    prepared.form = str(Encoding("nvfp4", scale_layout="prepared", prepared=facts))  # such as only GPUs have
    sends = (
        lambda: dist.broadcast(prepared, 0),
        lambda: dist.scatter(prepared, [plain, plain] if mesh.get_local_rank() == 0 else None),
        lambda: all_gather_tensor(prepared, 0, mesh),
        lambda: prepared.fsdp_pre_all_gather(mesh, (512, 128), (128, 1), torch.nn.Module(), None),
    )
    for send in sends:
        with pytest.raises(ValueError, match=r"prepared, it is more than its parts; use prepare=False"):
            send()


def check_dtensors(mesh):
    x = distribute_tensor(values(4, 128), mesh, [Replicate()])
    for weight in weights():
        whole = distribute_tensor(weight, mesh, [Shard(0)], src_data_rank=None)
        local = whole.to_local()
        assert (type(local), local.shape) == (dt.ScaledTensor, (128, 128)), weight
        product = F.linear(x, whole)
        assert isinstance(product, DTensor)
        assert product.placements == (Shard(1),), weight
        assert torch.equal(product.full_tensor(), F.linear(x.to_local(), weight)), weight
        assert parts_of(whole.full_tensor()) == parts_of(weight), weight
        check_values(whole, weight)
    mine = dt.quantize(values(64, 128, seed=mesh.get_local_rank()), "nvfp4")
    first = dt.quantize(values(64, 128, seed=0), "nvfp4")
    for placement in (Shard(0), Replicate()):  # what the first process has
        assert parts_of(distribute_tensor(mine, mesh, [placement]).full_tensor()) == parts_of(first)


def check_values(divided, weight):
    """Those of each process, of the type that the tensor decodes to, by PyTorch's own description too."""
    for kind in (torch.float32, torch.bfloat16):
        values, want = divided.to(kind).dequantize(), weight.to(kind).dequantize()
        assert values.placements == divided.placements
        assert torch.equal(values.full_tensor(), want), weight
        assert torch.equal((values @ values.mT).full_tensor().float(), (want @ want.mT).float()), weight


def check_columns(mesh):
    """K is cut between blocks, and one process sends out views with strides."""
    x, columns = values(4, 128), slice(64 * mesh.get_local_rank(), 64 * mesh.get_local_rank() + 64)
    for weight in weights():
        if weight.format == "fp8_128x128":
            continue
        for placement in (Shard(0), Shard(1)):
            whole = distribute_tensor(weight, mesh, [placement])
            product = F.linear(distribute_tensor(x, mesh, [Shard(1)]), whole).full_tensor()
            assert torch.allclose(product, F.linear(x, weight), rtol=1e-5, atol=1e-4), (weight, placement)
        assert torch.equal(whole.to_local().dequantize(), weight.dequantize()[:, columns]), weight
    cut = dt.quantize(values(64, 256, seed=mesh.get_local_rank()), "nvfp4")[:, :128]
    first = dt.quantize(values(64, 256, seed=0), "nvfp4")[:, :128]
    assert parts_of(distribute_tensor(cut, mesh, [Replicate()]).to_local()) == parts_of(first)


# Format, convention: parts that look like dlfp4's own, of another's names, with zero points, with a second scale twice.
STORED = (("nvfp4", None), ("nvfp4", "compressed-tensors"), ("uint4_g32", "gptq"), ("mxfp8_e4m3", None),
          ("fp8_128x128", "deepseek"), ("mxfp6_e2m3", None), ("fp8_row", "compressed-tensors"))  # fmt: skip


def check_parts(mesh):
    """As files have them, into a model that FSDP has divided: by its own names, and by PyTorch's function for it."""

    def made(seed, device="cpu"):
        torch.manual_seed(seed)
        with torch.device(device):
            model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.Linear(256, 256))
        return dt.quantize_(model, format, include="*", prepare=False, convention=convention)

    def sharded(seed, device="cpu"):
        model = made(seed, device)
        return fully_shard(model, mesh=mesh)

    x, options = values(2, 128), StateDictOptions(full_state_dict=True)
    for format, convention in STORED:
        state, want = made(0).state_dict(), made(0)(x)
        biases = {name: distribute_tensor(state[name], mesh, [Shard(0)]) for name in ("0.bias", "1.bias")}
        model = sharded(1)
        model(x)
        model.reshard()  # of what forward gathered, as for any weight
        assert model.load_state_dict(state | biases) == ([], []), (format, convention)
        assert torch.equal(model(x), want), (format, convention)
        codes = state.get("0.weight")
        if codes is not None and codes.dtype is not torch.uint8:
            continue  # gloo sends no FP8
        for seed, device in ((2, "cpu"), (1, "meta")):
            model = sharded(seed, device)
            set_model_state_dict(model, dict(state), options=options)
            assert torch.equal(model(x), want), (format, convention, device)
        model = sharded(0)
        found = get_model_state_dict(model, options=options)
        assert parts_of(found["0.weight"]) == parts_of(made(0)[0].weight), (format, convention)
        lacking = {name: part for name, part in state.items() if not name.endswith(("0.weight_scale", "0.scales"))}
        with pytest.raises(RuntimeError, match=r"Missing key.*0\.weight_scale|Unexpected key.*0\.(weight_p|q)"):
            model.load_state_dict(lacking | biases)


def check_tensor_parallel(mesh):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    for format in ("nvfp4", "mxfp8_e4m3", "uint4_g32"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128))
        x, expected = values(4, 128), dt.quantize_(model, format, prepare=False)(values(4, 128))
        assert torch.allclose(parallelize_module(model, mesh, plan)(x), expected, rtol=1e-5, atol=1e-5), format


def check_data_parallel(mesh):
    """Around frozen quantized weights, which PyTorch sends with all others in a line: each process gets the first's."""

    class Model(torch.nn.Module):
        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.first, self.second = torch.nn.Linear(128, 64), torch.nn.Linear(64, 8)
            dt.quantize_(self, "nvfp4", exclude="second")
            made = [
                dt.quantize(values(256, 128, seed=seed), format, axis=axis, **options) for format, axis, options in CUT
            ]
            stack, empty = dt.quantize(values(2, 32, 64, seed=seed), "mxfp4").mT, dt.quantize(values(0, 64), "nvfp4")
            alone = dt.quantize(values(64, seed=seed), "nvfp4").bfloat16()
            for number, weight in enumerate([*made, made[0].mT, made[0][:, :64], stack, empty, alone]):
                self.register_buffer(f"weight_{number}", weight)

        def forward(self, x):
            return self.second(self.first(x))

    model, expected = Model(mesh.get_local_rank()), Model(0)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    for name, x in [*expected.named_parameters(), *expected.named_buffers()]:
        own = dict([*model.named_parameters(), *model.named_buffers()])[name]
        assert parts_of(own) == parts_of(x) if isinstance(x, dt.ScaledTensor) else torch.equal(own, x), name
    wrapped(values(4, 128, seed=mesh.get_local_rank())).sum().backward()
    alone = [expected.first(values(4, 128, seed=rank)).sum(0) for rank in range(2)]
    assert torch.allclose(model.second.weight.grad, (sum(alone) / 2).expand(8, 64), rtol=1e-5, atol=1e-5)


def main():
    meeting, rank, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
    try:
        for name in names:
            globals()[f"check_{name}"](init_device_mesh("cpu", (2,)))
            print(f"{name} holds", flush=True)
    finally:
        dist.destroy_process_group()
    os._exit(0)  # PyTorch's own destructors abort one process in 25, by a thread of gloo's that nobody has joined


main()
