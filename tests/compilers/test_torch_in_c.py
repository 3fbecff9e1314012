"""matmul's kernels in C: their declarations against PyTorch's headers, and those in Python that serve without."""

import gc
import importlib
import shutil
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import dlfp4

torch = pytest.importorskip("torch")
dt = pytest.importorskip("dlfp4.torch")
stable = importlib.import_module("dlfp4.torch.stable")
products = importlib.import_module("dlfp4.torch.products")

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "dlfp4" / "core"
X = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
W = dt.functions.quantize(torch.randn(16, 64, generator=torch.Generator().manual_seed(2)), "nvfp4").mT
PARTS = W[:4]


def multiply(x=X, parts=PARTS, **options):
    return torch.ops.dlfp4.matmul(x, *parts, **options)


# ---- The interface

DECLARED = """
#include <torch/csrc/stable/c/shim.h>
#include <pybind11/detail/common.h>
#include <type_traits>
#include "boxed.h"

template <class A, class B> constexpr bool passes_alike() {
    return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>
        && std::is_floating_point_v<A> == std::is_floating_point_v<B>;
}
template <> constexpr bool passes_alike<void, void>() { return true; }
template <class F, class G> struct Same;
template <class R, class... A, class S, class... B> struct Same<R (*)(A...), S (*)(B...)> {
    static constexpr bool value = passes_alike<R, S>() && (passes_alike<A, B>() && ...);
};
#define SAME(name) static_assert(Same<decltype(dlfp4_stable::name), decltype(&::name)>::value, #name);
"""


def test_declarations_are_those_of_pytorchs_headers(tmp_path):
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    include = Path(torch.__file__).parent / "include"
    python = importlib.import_module("sysconfig").get_paths()["include"]
    names = [name for name in (*stable.FUNCTIONS, *stable.LATER) if hasattr(stable.LIBRARY, name)]
    lines = [*DECLARED.splitlines(), *(f"SAME({name})" for name in names)]
    lines.append("static_assert(sizeof(StableIValue) == sizeof(uint64_t));")
    lines.append("static_assert(std::is_base_of_v<std::runtime_error, pybind11::builtin_exception>);")
    source = tmp_path / "declared.cpp"
    source.write_text("\n".join(lines) + "\n")
    places = [f"-I{place}" for place in (include, python, CORE)]
    subprocess.run([compiler, "-std=c++20", "-fsyntax-only", *places, str(source)], check=True)


def test_the_table_is_in_the_order_of_the_header():
    text = (CORE / "boxed.h").read_text()
    places = [text.index(f"(*{name})") for name in (*stable.FUNCTIONS, *stable.LATER)]
    assert places == sorted(places)
    assert text.count("(*aoti_torch_") + text.count("(*torch_") == len(places)


IMPORTED_WITHIN_A_MODE = """
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    import dlfp4.torch as dt
from dlfp4.torch.products import KNOWN_IN_C
x = torch.ones(2, 64)
torch.ops.dlfp4.matmul(x, *dt.functions.quantize(x, "nvfp4").mT[:4])
assert len(KNOWN_IN_C) == 1
assert not hasattr(torch.ops.dlfp4_probe, "f")
"""


def test_kernels_are_found_wherever_they_are_imported():
    subprocess.run([sys.executable, "-P", "-c", IMPORTED_WITHIN_A_MODE], check=True, timeout=300)


def test_functions_are_found():
    assert stable.addresses() is not None
    assert stable.offset_of_keys() is not None


def test_keys_are_those_of_the_dispatcher():
    """What a kernel in Python is given, where one in C asks it."""
    seen = []
    library = torch.library.Library("dlfp4_test_keys", "DEF")
    library.define("f(Tensor a, Tensor? b=None) -> Tensor")

    def kernel(keyset, *args):
        found = stable.keys_of(args)
        for key in stable.PASSED:
            keyset = keyset.remove(key)
        below = torch._C._after_autograd_keyset
        seen.append(((found & below).raw_repr(), (keyset & below).raw_repr()))
        return args[0].clone()

    library.impl("f", kernel, "Autograd", with_keyset=True)
    op = torch.ops.dlfp4_test_keys.f
    op(X)
    op(X, X[0])
    torch.func.grad(lambda x: op(x).sum())(X)
    assert len(seen) >= 3
    assert all(found == given for found, given in seen)


# ---- Calls


def test_a_call_is_known_by_all_that_it_says():
    products.KNOWN_IN_C.clear()
    expected = multiply()
    count = len(products.KNOWN_IN_C)
    assert count == 1
    assert torch.equal(multiply(), expected)
    assert torch.equal(multiply(2 * X), 2 * expected)
    assert len(products.KNOWN_IN_C) == count
    for call in (
        lambda: multiply(X[:1]),
        lambda: multiply(X.bfloat16()),
        lambda: multiply(X.mT.contiguous().mT),
        lambda: multiply(alpha=2.0),
        lambda: multiply(out_dtype="float16"),
        torch.no_grad()(multiply),
        torch.inference_mode()(multiply),
    ):
        first = call()
        count += 1
        assert len(products.KNOWN_IN_C) == count
        assert torch.equal(call().view(torch.uint8), first.view(torch.uint8))
        assert len(products.KNOWN_IN_C) == count


def test_gradients_are_followed_after_calls_that_were_not():
    for _ in range(3):
        assert not multiply().requires_grad
        x = X.clone().requires_grad_()
        y = multiply(x)
        assert y.requires_grad
        y.sum().backward()
        assert torch.equal(x.grad, (torch.ones_like(y) @ dt.functions.dequantize(W).mT))
        with torch.no_grad():
            assert not multiply(x).requires_grad


def test_memory_that_is_gone_is_refused():
    multiply()
    x = X.clone()
    multiply(x)
    x.untyped_storage().resize_(0)
    with pytest.raises(BufferError, match="cannot be exchanged"):
        multiply(x)


def test_exceptions_come_as_they_were_raised():
    for _ in range(2):
        with pytest.raises(ValueError, match="K is 32 and 64") as raised:
            multiply(X[:, :32])
        assert any(entry.name == "kernel" for entry in raised.traceback)
        with pytest.raises(TypeError, match="nonsense"):
            multiply(parts=(*PARTS[:3], "nonsense"))
        with pytest.raises(dlfp4.BackendError):
            multiply(backend="cuda")
    with pytest.raises(ValueError, match="K is 32 and 64"), torch.inference_mode():
        multiply(X[:, :32])


def test_nothing_is_kept():
    """Of arguments, results and exceptions."""
    references = []
    for options in ({}, {"alpha": 3.0}, {"activation": "int8"}, {"a_shape": [2, 64]}):
        for x in (X.clone(), X.clone(), X[:, :32].clone()):
            try:
                y = multiply(x, **options)
            except (ValueError, TypeError):
                y = x
            references += [weakref.ref(x), weakref.ref(y)]
            del x, y
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []


def test_threads():
    """Each of many threads gets its own product, whether or not autograd follows."""
    failed = []

    def work(number):
        x = torch.full((1, 64), float(number))
        expected = multiply(x)
        for turn in range(200):
            with torch.set_grad_enabled(turn % 2 == 0), torch.inference_mode(turn % 3 == 0):
                if not torch.equal(multiply(x), expected):
                    failed.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


# ---- Without it

WITHOUT = """
import sys
import pytest
import dlfp4.frameworks.torch as torch_file
torch_file.natives = lambda: None  # as of a PyTorch without the functions
import dlfp4.torch
from dlfp4.torch.products import KNOWN_IN_C
code = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]])
assert not KNOWN_IN_C
sys.exit(code)
"""


def test_kernels_in_python_serve_alike():
    files = [str(HERE / name) for name in ("test_torch_transforms.py", "test_torch_ops.py")]
    how = [sys.executable, "-P", "-c", WITHOUT, *files, "-k", "matmul or products or grad or jvp or vmap"]
    done = subprocess.run(how, cwd=HERE.parents[1], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
