"""Tensors of PyTorch behind which there is no memory, less than they say, or more than numbers: each is refused, by
every way in, and the message says what helps. What could end the interpreter runs in one of its own."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints, frameworks

HEAD = """
import dataclasses, sys, tempfile, warnings
import numpy as np, torch, dlfp4
from dlfp4 import checkpoints, frameworks
warnings.simplefilter("ignore")

class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        result = function(*[each.inner if isinstance(each, Wrapper) else each for each in args], **(kwargs or {}))
        return cls(result) if isinstance(result, torch.Tensor) else result

def shrunk(bytes):
    whole = torch.ones(4, 64)
    view = whole[1:]
    whole.untyped_storage().resize_(bytes)
    return view

def tail():
    whole = torch.ones(4, 64)
    view = whole[1, :4]
    whole.untyped_storage().resize_(200)
    return view

def strided():
    whole = torch.ones(4, 64)
    view = whole[::3]
    whole.untyped_storage().resize_(600)
    return view

def fake():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        return torch.ones(4, 64)

def distributed():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    place = "file://" + tempfile.mkdtemp() + "/store"
    torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
    return distribute_tensor(torch.ones(4, 64), init_device_mesh("cpu", (1,)), [Shard(0)])
"""
MAKERS = {
    "freed": ("shrunk(0)", "resized to 0 bytes"),
    "shrunk": ("shrunk(300)", "ends at byte 1024 of a storage that was resized to 300 bytes"),
    "tail": ("tail()", "ends at byte 272 of a storage that was resized to 200 bytes"),
    "strided": ("strided()", "ends at byte 1024 of a storage that was resized to 600 bytes"),
    "subclass": ("shrunk(300).as_subclass(type('Sub', (torch.Tensor,), {}))", "resized to 300 bytes"),
    "parameter": ("torch.nn.Parameter(shrunk(300), requires_grad=False)", "resized to 300 bytes"),
    "fake": ("fake()[1:]", "it is a fake tensor"),
    "zero": ("torch._efficientzerotensor(4, 64)[1:]", "no memory of its own"),
    "functional": ("torch._to_functional_tensor(torch.ones(4, 64))[1:]", "no memory of its own"),
    "wrapper": ("Wrapper(torch.ones(4, 64))[1:]", "no memory of its own"),
    "distributed": ("distributed()[1:]", ".to_local()"),
}
USES = {
    "from_dlpack": "dlfp4.from_dlpack(x).tolist()",
    "asarray": "dlfp4.asarray(x).tolist()",
    "an operation": "dlfp4.quantize(x, 'mxfp4')",
    "out": "dlfp4.cast(torch.ones(3, 64), 'float32', out=x)",
    "a file": "checkpoints.save(tempfile.mktemp(), {'x': x})",
}
WITHOUT_NATIVES = """
module = frameworks.load("torch")
module.FRAMEWORK = dataclasses.replace(module.FRAMEWORK, natives=lambda: None)
"""


def run(code):
    """What a program prints; a signal or a traceback fails the test."""
    done = subprocess.run([sys.executable, "-P", "-c", HEAD + code], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout


@pytest.mark.parametrize("before", ["", WITHOUT_NATIVES], ids=["by C", "by Python"])
def test_views_without_their_memory(torch, before):
    """PyTorch's pointer of a view is its storage's plus the offset: not NULL where that has no memory."""
    uses = "\n".join(
        f"try:\n    {use}\n    print('accepted')\nexcept BufferError as error:\n    print(error)"
        for use in USES.values()
    )
    made = "\n".join(f"x = {make}\n{uses}" for make, _ in MAKERS.values())
    told = run(f"sys.stdout.reconfigure(line_buffering=True)\n{before}\n{made}").splitlines()
    cases = itertools.product(MAKERS, USES)
    for (kind, use), line in zip(cases, told, strict=True):
        assert MAKERS[kind][1] in line, (kind, use)
        assert "cannot be exchanged" in line, (kind, use)


def test_a_storage_that_shrinks_later(torch):
    """Under a Tensor that was imported before, and one of its views."""
    whole = torch.ones(4, 64)
    tensor = dlfp4.from_dlpack(whole)
    part = tensor[2:]
    whole.untyped_storage().resize_(300)
    for gone in (tensor, part):
        for use in (lambda t: t.to_numpy(), lambda t: t.__dlpack__(), lambda t: dlfp4.cast(t, "bfloat16")):
            with pytest.raises(BufferError, match="is gone; import it again"):
                use(gone)


def test_a_storage_that_shrinks_where_it_lies(torch):
    """Which gets its old address again, by way of none: the address alone does not tell."""
    for _ in range(100):
        whole = torch.ones(4, 64)
        tensor = dlfp4.from_dlpack(whole)
        whole.untyped_storage().resize_(0)
        whole.untyped_storage().resize_(1000)
        if whole.data_ptr() == tensor.data_ptr:
            break
    else:
        pytest.skip("memory of another address, each time")
    for use in (lambda t: t.to_numpy(), lambda t: t.__dlpack__(), lambda t: dlfp4.cast(t, "bfloat16")):
        with pytest.raises(BufferError, match="is gone; import it again"):
            use(tensor)


def test_whole_tensors_pass(torch):
    """Every way in which a tensor may lie in its storage, to the last byte."""
    whole = torch.arange(4 * 6 * 8, dtype=torch.float32).reshape(4, 6, 8)
    views = [
        whole,
        whole[3:, 5:, 7:],
        whole[1:, ::2, 3],
        whole.permute(2, 0, 1),
        whole[:, :, :0],
        whole[2].T,
        whole.view(torch.uint8),
    ]
    views += [
        whole.to(torch.complex64)[1:],
        whole[1].expand(5, 6, 8),
        whole.as_strided((4, 3), (1, 0), 188),
        torch.empty(0),
    ]
    for view in views:
        tensor = dlfp4.from_dlpack(view)
        assert tensor.tolist() == view.tolist()
        assert tensor.data_ptr == view.data_ptr() or not tensor.size


def test_pytorch_answers_by_c(torch):
    """All of its functions are found; without one of them every exchange would go through Python."""
    natives = frameworks.framework("torch").natives()
    assert natives is not None
    assert natives.impl > 0
    assert min(natives.data, natives.trace, natives.has_modes, *natives.flags_of_impl.values()) > 0


def test_usual_tensors_are_answered_by_c_alone(torch):
    """Python is asked where C does not suffice, and never of these: to the first and the last byte of their storage."""
    told = run("""
def ask(native):
    raise AssertionError(native)

module = frameworks.load("torch")
module.FRAMEWORK = dataclasses.replace(module.FRAMEWORK, cannot_export=ask)
whole = torch.arange(4 * 6 * 8, dtype=torch.float32).reshape(4, 6, 8)
names = "uint8 int8 int16 float8_e5m2 float64 complex64 float4_e2m1fn_x2"
for dtype in (getattr(torch, name) for name in names.split()):
    x = whole.view(torch.uint8).view(dtype) if dtype is torch.float4_e2m1fn_x2 else whole.to(dtype)
    for view in (x, x[1:], x[3:, 5:], x[0, :1], x[:, ::2], x[2, 1:1]):
        y = dlfp4.from_dlpack(view)
        assert y.data_ptr == view.data_ptr() or not y.size
        y.to_numpy()
print("done")
""")
    assert told == "done\n"


def test_guards_have_room(torch):
    """Of which a framework's file may name four."""
    told = run("""
module = frameworks.load("torch")
guard = module.FRAMEWORK.guards()[0]
for count in (5, 4):
    module.FRAMEWORK = dataclasses.replace(module.FRAMEWORK, guards=lambda count=count: [guard] * count)
    try:
        print(dlfp4.from_dlpack(torch.ones(2)).tolist())
    except RuntimeError as error:
        print(error)
""")
    assert told == "torch has 5 guards; a row has room for 4\n[1.0, 1.0]\n"


def test_python_answers_where_c_does_not(torch):
    """The tests of what PyTorch's tensors say, and of memory that it takes away, in a process without its functions."""
    shrinks = (f"{__file__}::test_a_storage_that_shrinks_{how}" for how in ("later", "where_it_lies"))
    files = [Path(__file__).with_name("test_torch_tensors.py"), *shrinks]
    told = run(f"""{WITHOUT_NATIVES}
import pytest
status = pytest.main(["-p", "no:cacheprovider", *{list(map(str, files))!r}])
assert frameworks.framework("torch").natives() is None
sys.exit(status)
""")
    assert " passed" in told


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sparse", r"torch\.sparse_coo.*\.to_dense\(\)"),
        ("sparse_csr", r"torch\.sparse_csr.*\.to_dense\(\)"),
        ("mkldnn", r"_mkldnn.*\.to_dense\(\)"),
        ("nested", r"nested.*\.unbind\(\)"),
        ("quantized", r"\.int_repr\(\).*\.dequantize\(\)"),
        ("meta", r'device "meta"'),
    ],
)
@pytest.mark.filterwarnings("ignore")  # PyTorch's own, of layouts that it calls beta
def test_tensors_of_other_kinds(torch, kind, words):
    x = torch.eye(4)
    made = {
        "sparse": x.to_sparse,
        "sparse_csr": x.to_sparse_csr,
        "mkldnn": x.to_mkldnn,
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
        "quantized": lambda: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        "meta": lambda: torch.empty(4, 4, device="meta")[1:],
    }[kind]()
    for entry in (dlfp4.from_dlpack, dlfp4.asarray, lambda x: dlfp4.cast(x, "bfloat16")):
        with pytest.raises(BufferError, match=words):
            entry(made)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "int1", "uint7"])
def test_integers_that_call_themselves_int8(torch, name):
    """PyTorch hands them out as int8 or uint8; the remedy gives what they are."""
    octets = torch.randint(0, 256, (3, 8), dtype=torch.uint8)
    shell = octets.view(getattr(torch, name))
    with pytest.raises(BufferError, match=rf"torch\.{name} an integer of 8 bits.*\.view\(torch\.uint8\)"):
        dlfp4.from_dlpack(shell)
    typed = dlfp4.asarray(shell.view(torch.uint8))
    assert (typed.dtype, typed.data_ptr) == (np.dtype(np.uint8), octets.data_ptr())
    if name in ("int4", "uint4"):
        assert typed.view(name).shape == (3, 16)
    for plain in (octets, octets.view(torch.int8)):
        assert dlfp4.from_dlpack(plain).tolist() == plain.tolist()


def test_a_class_that_hands_out_its_own_memory(torch):
    """A wrapper with a __dlpack__ of its own knows where its values are."""
    told = run("""
class Giver(Wrapper):
    def __dlpack__(self, **options):
        return self.inner.__dlpack__(**options)

print(dlfp4.from_dlpack(Giver(torch.arange(4.0))).tolist())
""")
    assert told.strip() == "[0.0, 1.0, 2.0, 3.0]"


# ---- within what PyTorch traces or transforms


def result_within(torch, x):
    return dlfp4.cast(x, "bfloat16").to_torch() * 1


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # deprecated, and used by jvp
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize"])
def test_within_transforms(torch, transform):
    x = torch.ones(3, 4)
    function = lambda x: result_within(torch, x).sum()  # noqa: E731
    runs = {
        "vmap": lambda: torch.vmap(function)(x),
        "grad": lambda: torch.func.grad(function)(x),
        "jvp": lambda: torch.func.jvp(function, (x,), (x,)),
        "functionalize": lambda: torch.func.functionalize(function)(x),
    }
    with pytest.raises(BufferError, match=r"within vmap, grad, jvp or functionalize.*outside of the transform"):
        runs[transform]()


@pytest.mark.filterwarnings("ignore:`torch.jit.trace`")  # deprecated
def test_a_trace_has_no_constants_of_ours(torch):
    with pytest.raises(BufferError, match=r"torch\.jit\.trace would make a constant of the result"):
        torch.jit.trace(lambda x: result_within(torch, x), (torch.ones(2, 32),))
    assert result_within(torch, torch.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_nor_has_a_graph_of_make_fx(torch, mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    with pytest.raises(BufferError, match=r"make_fx.* would make a constant of the result"):
        make_fx(lambda x: result_within(torch, x), tracing_mode=mode)(torch.ones(2, 32))


def test_other_modes_of_pytorch_do_not_matter(torch):
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False):
        assert result_within(torch, torch.ones(2)).tolist() == [1, 1]
        assert dlfp4.from_dlpack(torch.ones(2, dtype=torch.int8)).tolist() == [1, 1]


# ---- read-only memory, which PyTorch would write to


@pytest.fixture
def protected(tmp_path):
    (tmp_path / "x").write_bytes(np.arange(16, dtype=np.float32).tobytes())
    return dlfp4.asarray(np.memmap(tmp_path / "x", np.float32, "r", shape=(2, 8)))


def test_pytorch_gets_a_copy_of_protected_memory(torch, protected):
    for take in (torch.from_dlpack, torch.utils.dlpack.from_dlpack, lambda t: t.to_torch()):
        taken = take(protected)
        assert taken.tolist() == protected.tolist()
        assert taken.data_ptr() != protected.data_ptr
        taken.zero_()  # in place it would end the process
    assert protected.tolist()[1] == list(range(8, 16))


def test_and_no_memory_at_all_where_it_wants_no_copy(torch, protected):
    for take in (lambda t: torch.from_dlpack(t, copy=False), lambda t: t.to_torch(copy=False)):
        with pytest.raises(frameworks.RefusedError, match="memory is read-only"):
            take(protected)
    writable = dlfp4.empty((2, 8), "float32")
    assert torch.from_dlpack(writable, copy=False).data_ptr() == writable.data_ptr


def test_others_get_protected_memory_as_it_is(protected):
    assert np.from_dlpack(protected).ctypes.data == protected.data_ptr
    assert not np.from_dlpack(protected).flags.writeable


def test_protected_fp4_comes_in_pairs(torch, tmp_path):
    octets = np.random.default_rng(0).integers(0, 256, (4, 8), np.uint8)
    (tmp_path / "x").write_bytes(octets.tobytes())
    fp4 = dlfp4.asarray(np.memmap(tmp_path / "x", np.uint8, "r", shape=(4, 8))).view("float4_e2m1fn")
    taken = torch.from_dlpack(fp4)
    assert (taken.dtype, tuple(taken.shape)) == (torch.float4_e2m1fn_x2, (4, 8))
    assert taken.view(torch.uint8).numpy().tobytes() == octets.tobytes()


def test_checkpoints_of_real_tensors_are_written(torch, tmp_path):
    checkpoints.save(tmp_path / "x.safetensors", {"x": torch.arange(6.0).reshape(2, 3)[1:]})
    assert checkpoints.load(tmp_path / "x.safetensors")["x"].tolist() == [[3, 4, 5]]
