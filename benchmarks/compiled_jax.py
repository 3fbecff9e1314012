"""The rows of JAX in the benchmark of compiled calls: eager dlfp4, a jitted call by XLA's FFI, and pure_callback.

python benchmarks/compiled_jax.py [--device cuda]
"""

import argparse
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
from harness import Case

import dlfp4
import dlfp4.jax as dj

PEERS = ("jax",)
SHAPES = {"small": (1, 64, 16), "large": (4, 1024, 1024)}  # M, K, N


def by_callback(w: dlfp4.ScaledTensor, shape: tuple[int, int]) -> Any:
    """The product as JAX programs had it before."""

    def multiply(x: Any) -> Any:
        return dlfp4.matmul(np.asarray(x), w).to_numpy()

    return jax.jit(lambda x: jax.pure_callback(multiply, jax.ShapeDtypeStruct(shape, np.float32), x))


def cases(name: str, device: str) -> list[Case]:
    """The same product by each way, float32 by NVFP4; JAX's calls until the result is there."""
    rows, depth, columns = SHAPES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    q = dlfp4.quantize(rng.standard_normal((columns, depth)).astype(np.float32), "nvfp4")
    there, host = jax.devices(device)[0], jax.devices("cpu")[0]
    given, weight = jax.device_put((jnp.asarray(x), dj.ScaledArray.from_tensor(q)), there)
    jitted = jax.jit(lambda x, w: dj.matmul(x, w.mT))
    closed = jax.jit(lambda x: dj.matmul(x, weight.mT))
    callback = by_callback(q.mT, (rows, columns))
    smallest, one = jax.jit(lambda x: dj.cast(x, "bfloat16")), jax.device_put(jnp.ones(1), there)  # what XLA takes
    return [
        Case("dlfp4.matmul", "f(x, b)", f=dlfp4.matmul, x=x, b=q.mT),
        Case("dlfp4.matmul of a jax.Array", "f(x, b)", f=dlfp4.matmul, x=jax.device_put(x, host), b=q.mT),
        Case("dlfp4.jax.matmul, jitted", "f(x, w).block_until_ready()", f=jitted, x=given, w=weight),
        Case("the same, the weight a constant", "f(x).block_until_ready()", f=closed, x=given),
        Case("jax.pure_callback, jitted", "f(x).block_until_ready()", f=callback, x=given),
        Case("a jitted custom call of one element", "f(x).block_until_ready()", f=smallest, x=one),
        Case("a jitted program that adds 1", "f(x).block_until_ready()", f=jax.jit(lambda x: x + 1), x=given),
    ]


def rows_of(cases: list[Case]) -> list[tuple[str, ...]]:
    """Each case beside the eager call."""
    return [
        (
            case.label,
            harness.number(None if case.median is None else case.median * 1e6),
            harness.number(case.ratio(cases[0])),
            case.problem,
        )
        for case in cases
    ]


def main() -> None:
    """Time all, and print a table with a section for each shape."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    dlfp4.set_num_threads(1)
    table = harness.Table(("<call", "µs", "/ eager", "<"))
    made = {name: cases(name, arguments.device) for name in SHAPES}
    harness.measure([case for each in made.values() for case in each], arguments.rounds, 5)
    for name, (rows, depth, columns) in SHAPES.items():
        table.sections[f"{name}: float32 {rows}x{depth} by NVFP4 {depth}x{columns}, {arguments.device}"] = rows_of(
            made[name]
        )
    print("\n".join(harness.machine_lines(harness.describe_machine(PEERS))))
    table.print()


if __name__ == "__main__":
    main()
