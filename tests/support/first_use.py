"""A program: eight threads import dlfp4 and use it for the first time, at once; what they find is what one finds."""

import sys
import threading

import numpy as np

sys.setswitchinterval(1e-6)
barrier, found = threading.Barrier(8), [None] * 8
x = np.random.default_rng(3).normal(size=(4, 64)).astype("float32")


def results():
    import dlfp4

    parts = []
    for name in ("float4_e2m1fn", "float6_e2m3fn", "float8_e5m2", "bfloat16"):
        tensor = dlfp4.asarray(dlfp4.cast(x, name))
        through = tensor if name == "bfloat16" else dlfp4.cast(tensor, "float8_e4m3fn")
        parts.append(dlfp4.cast(through, "float32").to_numpy().tobytes())
    for name in dlfp4.formats():
        q = dlfp4.quantize(x, name, pad=True)
        parts += [str(q), bytes(q.dequantize().to_numpy()), dlfp4.TensorProto((64, 256), format=name).buffers()]
    w = dlfp4.quantize(x, "nvfp4")
    parts += [bytes(dlfp4.matmul(x, w.mT).to_numpy()), dlfp4.backends(x, w.mT), dlfp4.vecdot(w, w).tolist()]
    return str(parts)


def run(number):
    barrier.wait()
    found[number] = results()


threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert found == [results()] * 8, [each and hash(each) for each in found]
print(len(found[0]))
