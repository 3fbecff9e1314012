"""A target of dlfp4.jax: the bytes of the package's own calls, or their refusals.

A call is by itself, or within a jitted program, of a batch under jax.vmap, or differentiated.
"""

import importlib
from importlib.util import find_spec

import calls
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from calls import FLOATS, PRODUCTS, outcome
from capsules import DTYPES

import dlfp4

dj = importlib.import_module("dlfp4.jax")
FP6 = ("float6_e2m3fn", "float6_e3m2fn")
MOST = 400  # cases after which compiled programs are forgotten
done = 0


# ---- Operands


def bits_of(name):
    return DTYPES[name][1]


def single(x):
    """The codes of a Tensor, one in each element, and as many bits as it has."""
    bits = bits_of(x.dtype.name)
    if bits < 8:
        return (dlfp4.unpack(x) if x.packed else x).to_numpy().view(np.uint8) & (1 << bits) - 1
    return x.copy().to_numpy()


def packed_octets(x):
    """The bytes of a Tensor whose rows end on bytes, in its shape but for the last dimension."""
    *lines, length = x.shape
    octets = x.copy().reshape((-1,) if x.size else (0,)).view("uint8").to_numpy()
    return octets.reshape(*lines, length * bits_of(x.dtype.name) // 8)


def for_jax(x):
    """An operand and, where JAX has no such type, what its bytes are."""
    if isinstance(x, dlfp4.ScaledTensor):  # sums may have the order of strides, which arrays do not keep
        return dj.ScaledArray.from_tensor(x.mT).mT if calls.is_transpose(x) else dj.ScaledArray.from_tensor(x), None
    if isinstance(x, dlfp4.Tensor):
        name = x.dtype.name
        if bits_of(name) < 8 and not x.packed:
            return jnp.asarray(single(x)), name
        if name in FP6:
            return jnp.asarray(packed_octets(x)), name
        return jnp.asarray(single(x).view(getattr(ml_dtypes, name, name))), None
    return jnp.asarray(x), None


def holds(x):
    """Whether JAX has a form for a plain operand: rows of FP6 end on bytes."""
    if not isinstance(x, dlfp4.Tensor):
        return True
    name = x.dtype.name
    return name not in FP6 or (x.packed and x.ndim > 0 and x.shape[-1] * 6 % 8 == 0)


def can_take(call):
    """Whether a call has a form in JAX."""
    options = call.options
    if not options.get("packed", True) or not all(map(holds, call.tensors.values())):
        return False
    if call.name in ("cast", "pack", "unpack"):
        return call.name != "cast" or call.tensors["x"].dtype.name not in calls.BELOW_A_BYTE or call.tensors["x"].packed
    return not any(isinstance(x, dlfp4.Tensor) and (x.dtype.name in FP6 or not x.packed) for x in call.tensors.values())


def translated(call):
    """A call's tensors and options as JAX takes them."""
    options, tensors = dict(call.options), {}
    options.pop("packed", None)
    for name, x in call.tensors.items():
        tensors[name], said = for_jax(x)
        if call.name == "pack":
            options["dtype"] = x.dtype.name
        elif said is not None:
            options["source_dtype" if call.name == "cast" else "dtype"] = said
    if "offsets" in tensors:
        tensors["offsets"] = jnp.diff(tensors["offsets"], prepend=0)
    return tensors, options


# ---- Results


def check(call, expected, found):
    """Whether a result is what the package gives."""
    if decodes(call):
        assert calls.is_near(call, np.asarray(found), expected)
    elif call.name in PRODUCTS:
        check_elements(*(dlfp4.asarray(calls.with_one_nan(np.asarray(x))) for x in (expected, found)), "result")
    else:
        check_bytes(expected, found)


def check_bytes(expected, found):
    """The same of a result, its parts, or several."""
    if isinstance(expected, tuple):
        assert len(expected) == len(found)
        for pair in zip(expected, found, strict=True):
            check_bytes(*pair)
    elif isinstance(expected, dlfp4.ScaledTensor):
        assert (found.shape, found.format, found.axis) == (expected.shape, expected.format, expected.axis)
        assert (found.scale_layout, found.hadamard) == (expected.scale_layout, expected.hadamard)
        for name in ("data", "scales", "global_scale", "zero_points", "biases"):
            part, own = getattr(expected, name), getattr(found, name)
            assert (part is None) == (own is None), name
            if part is not None:
                check_elements(part, own, name)
    else:
        check_elements(expected, found, "result")


def check_elements(expected, found, what):
    """The same of codes."""
    name = expected.dtype.name
    if name in FP6 and expected.packed:
        codes, dtype = packed_octets(expected), "uint8"
    else:
        codes, dtype = single(expected), name if bits_of(name) >= 8 or expected.packed else "uint8"
    assert (found.shape, found.dtype.name) == (codes.shape, dtype), (what, found.shape, found.dtype, codes.shape, dtype)
    own = np.asarray(found, order="C")
    own = own.view(np.uint8) & (1 << bits_of(name)) - 1 if bits_of(name) < 8 and dtype != "uint8" else own
    assert own.tobytes() == codes.tobytes(), f"{what}: other bytes"


def can_hold(result):
    """Whether JAX has a form for a result: FP6 is in bytes."""
    if isinstance(result, tuple):
        return all(map(can_hold, result))
    parts = [result.data] if isinstance(result, dlfp4.ScaledTensor) else [result]
    return all(
        part.dtype.name not in FP6 or not part.packed or (part.ndim and part.shape[-1] * 6 % 8 == 0) for part in parts
    )


# What JAX alone refuses: FP6, matrices with global scales whose scales lie in tiles, and batches of odd sizes.
LACKS = ("JAX has no such type", "their tiles may be shared", "which do not fill bytes")


def is_unheld(expected, refusal, refused):
    """Whether a call is refused for what JAX alone has no form for."""
    if refusal is None and not can_hold(expected):
        assert isinstance(refused, ValueError), refused
        return True
    return isinstance(refused, ValueError) and any(said in str(refused) for said in LACKS)


def check_refusal(expected, found):
    """Whether two calls were refused alike."""
    assert type(expected) is type(found), f"{expected!r}, and by JAX {found!r}"


# ---- The target


def run(call, tensors, options):
    """A call of JAX's namesake."""
    own = calls.Call(call.name, call.tensors, options)
    return own.run(dj, {name: tensors[name] for name in call.tensors})  # pytrees have names in another order


def by_itself(rng, call, tensors, options):
    return run(call, tensors, options)


def in_a_program(rng, call, tensors, options):
    return jax.jit(lambda tensors: run(call, tensors, options))(tensors)


def turned(rng, call, tensors, options):
    """Operands that XLA has in another order until they are read."""
    given = {name: x.T if isinstance(x, jax.Array) else x for name, x in tensors.items()}
    back = lambda name, x: x.T if isinstance(tensors[name], jax.Array) else x  # noqa: E731
    return jax.jit(lambda given: run(call, {name: back(name, x) for name, x in given.items()}, options))(given)


def leaf_by_leaf(rng, call, tensors, options):
    """Operands that went through a pytree's leaves."""
    leaves, structure = jax.tree.flatten(tensors)
    return run(call, jax.tree.unflatten(structure, leaves), options)


WAYS = (by_itself, by_itself, leaf_by_leaf, in_a_program, turned)


def operations(rng):
    """A call in some way."""
    forget()
    call = calls.call_of(rng)
    if not can_take(call):
        return False
    with jax.enable_x64(rng.random() < 0.3 or is_wide(call)):
        tensors, options = translated(call)
        expected, refusal = outcome(call.eager)
        if is_refused_while_running(call, refusal):
            return False
        found, refused = outcome(lambda: jax.block_until_ready(rng.choice(WAYS)(rng, call, tensors, options)))
        if is_unheld(expected, refusal, refused):
            return False
        check_refusal(refusal, refused)
        if refusal is not None:
            return False
        check(call, expected, found)
        if call.name in PRODUCTS and find_spec("torch") and rng.random() < 0.2:
            check_gradients(rng, call, tensors, options)
    return True


def decodes(call):
    """Whether operands of a matrix product are decoded, and then multiplied by whoever comes first."""
    a, b = (getattr(call.tensors.get(name), "axis", None) for name in "ab")
    return call.name == "matmul" and (a == -2 or b == -1)


def is_wide(call):
    """Whether there are float64 numbers, which JAX has where it is told."""
    return (
        any(getattr(x, "dtype", None) == np.float64 for x in call.tensors.values())
        or "float64" in call.options.values()
    )


def is_refused_while_running(call, refusal):
    """Whether numbers are wrong, which programs do not look at before."""
    return refusal is not None and any(
        name in str(refusal) for name in ("offsets", "indices[", "token", "global_scale=")
    )


def forget():
    """Compiled programs, of which there is a new one for most cases."""
    global done
    done += 1
    if done % MOST == 0:
        jax.clear_caches()
        for name in ("calls", "primitives", "scaled_array"):
            for each in vars(importlib.import_module(f"dlfp4.jax.{name}")).values():
                getattr(each, "cache_clear", int)()


# ---- Gradients


def check_gradients(rng, call, tensors, options):
    """Those of float operands, as of the product of decoded ones."""
    names = [name for name, x in tensors.items() if isinstance(x, jax.Array) and x.dtype.name in FLOATS]
    if not names:
        return
    result, pull = jax.vjp(
        lambda *own: run(call, tensors | dict(zip(names, own, strict=True)), options), *map(tensors.get, names)
    )
    gradient = np.random.default_rng(rng.getrandbits(32)).normal(size=result.shape).astype(result.dtype)
    derivatives = importlib.import_module("derivatives")
    derivatives.check(call, names, gradient, [np.asarray(each) for each in pull(jnp.asarray(gradient))])


# ---- Batches


def stacked(many, axis):
    """Operands as one, by NumPy: XLA's own copies of FP8 change NaNs. One that is the same for all stays."""
    if axis is None:
        return many[0]
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(list(map(np.asarray, leaves)), axis)), *many)


def batches(rng):
    """A call under jax.vmap: the bytes of one after another, of products nearly."""
    forget()
    call, size = calls.call_of(rng), rng.choice([1, 2, 3])
    if not can_take(call):
        return False
    names = [name for name in call.tensors if name != "offsets" and rng.random() < 0.6] or list(call.tensors)[:1]
    many = calls.variants_of(rng, call, names, size)
    expected = [outcome(each.eager) for each in many]
    refusal = next((error for _, error in expected if error is not None), None)
    if is_refused_while_running(call, refusal):
        return False
    with jax.enable_x64(is_wide(call)):
        each = [translated(one) for one in many]
        axes = {name: 0 if name in names else None for name in call.tensors}
        for name in names:
            if isinstance(each[0][0][name], jax.Array):
                axes[name] = rng.randrange(each[0][0][name].ndim + 1)
        given = {name: stacked([tensors[name] for tensors, _ in each], axes[name]) for name in call.tensors}
        program = jax.vmap(lambda given: run(call, given, each[0][1]), in_axes=(axes,))
        found, refused = outcome(lambda: jax.block_until_ready(program(given)))
        if is_unheld(expected[0][0], refusal, refused):
            return False
        check_refusal(refusal, refused)
        if refusal is not None:
            return False
        for number, (wanted, _) in enumerate(expected):
            own = jax.tree.map(lambda leaf, number=number: np.asarray(leaf)[number], found)
            if call.name == "matmul":
                assert calls.is_near(many[number], np.asarray(own), wanted)
            else:
                check(call, wanted, own)
    return True


TARGETS = {"jax": operations, "jax_batches": batches}
