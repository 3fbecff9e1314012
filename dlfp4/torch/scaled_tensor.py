"""ScaledTensor: a block-scaled tensor as a ``torch.Tensor``, made of the tensors that are its parts.

To PyTorch it has the shape and the float type of the values that it decodes to. What it answers is a table,
``HANDLERS``, which the files beside this one fill: views, copies, products, collectives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch

from dlfp4 import _core
from dlfp4.formats import FLOATS, offset_parts
from dlfp4.frameworks.base import SUBBYTE
from dlfp4.operations import Encoding
from dlfp4.torch import functions
from dlfp4.torch.gradients import is_differentiated
from dlfp4.torch.memoryless import Memoryless
from dlfp4.torch.representing import Parts, outline, share_quantized
from dlfp4.torch.tracing import PlainTraced, is_traced_whole, traces_whole

if TYPE_CHECKING:
    import dlfp4
    from dlfp4._core import _DType
    from dlfp4.torch.arranging import Arranged

# Attributes that hold the inner tensors; all but the first two may be None.
PARTS = ("elements", "scales", "global_scale", "encode_scale", "offsets")
UNITS = ("global_scale", "encode_scale")  # of the tensor, of rows or of matrices
OWN = (*PARTS, "form", "turned")

DTYPES = (*(getattr(torch, name) for name in FLOATS), torch.float64)

Axis = Literal[-1, -2]
Shape = tuple[int, ...]
Context = tuple[str, Any, bool]  # form, dtype, turned: what a compiler has to know besides the parts


class Table(dict[Any, Callable[..., Any]]):
    """Functions by what they do for PyTorch: its operations, or names of others'."""

    def implements(self, *operations: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Enter a function for some of them."""

        def enter(handler: Callable[..., Any]) -> Callable[..., Any]:
            self.update(dict.fromkeys(operations, handler))
            return handler

        return enter


HANDLERS = Table()  # (function, *its arguments)
implements = HANDLERS.implements


class ScaledTensor(Memoryless):
    """A block-scaled tensor in PyTorch: ``value = element * scale of its block (* global scale)``.

    It comes from :func:`quantize`, or over the memory of a :class:`dlfp4.ScaledTensor` from :meth:`from_dlfp4`. Its
    ``dtype`` is the float type that it decodes to: ``.to(dtype)`` changes that and nothing else. float64 has the values
    of float32, and products with x of that type are computed in it, of decoded weights. As a frozen weight
    (``torch.nn.Parameter(q, requires_grad=False)``) it multiplies (``F.linear``, ``x @ q.mT``, ``torch.mm``, ``addmm``,
    ``bmm``, ``einsum``), under ``torch.compile`` as well, and gives x its gradient. It can be copied, moved,
    transposed, sliced between blocks, joined into larger modules, saved and loaded. Whatever needs its values one by
    one raises NotImplementedError: call :meth:`dequantize` first.

    Attributes
    ----------
    elements : torch.Tensor
        The elements as they are stored: uint8, packed, below 8 bits, else of their own type. Shaped as ``data`` of
        :class:`dlfp4.ScaledTensor`, in bytes.
    scales : torch.Tensor
        Decode scales, in the shape of ``scales`` there.
    global_scale : torch.Tensor or None
        Decode scales of the tensor, of rows or of matrices.
    encode_scale : torch.Tensor or None
        The global scale as some checkpoints store it. Operations do not read it.
    offsets : torch.Tensor or None
        Zero points or biases of integers, in the shape of the scales.
    form : str
        How the parts are stored: format, axis, scale layout, Hadamard transform; the text of :attr:`encoding`.
    turned : bool
        Whether it is the transpose of the tensor that the parts make.

    Examples
    --------
    >>> import torch, dlfp4.torch
    >>> w = dlfp4.torch.quantize(torch.eye(4, 32), "mxfp4")
    >>> w.shape, w.dtype, w.format
    (torch.Size([4, 32]), torch.float32, 'mxfp4')
    >>> torch.nn.functional.linear(torch.ones(1, 32), w)
    tensor([[1., 1., 1., 1.]])
    """

    elements: torch.Tensor
    scales: torch.Tensor
    global_scale: torch.Tensor | None
    encode_scale: torch.Tensor | None
    offsets: torch.Tensor | None
    form: str
    turned: bool
    lent: frozenset[str] | None = None  # of a view: the parts that are also those of what lies beside it

    def __new__(  # noqa: PYI034  (PyTorch makes the object)
        cls,
        parts: Mapping[str, torch.Tensor | None] | ScaledTensor,
        form: str = "",
        shape: Shape = (),
        dtype: torch.dtype = torch.float32,
        turned: bool = False,
        *,
        requires_grad: bool = False,
    ) -> ScaledTensor:
        """The tensor of its parts, which are not checked: of users' own parts, dlfp4.ScaledTensor.from_parts does.

        Called as torch.nn.Parameter is, which is what accelerate does with the type of a parameter, it makes one.
        """
        if isinstance(parts, torch.Tensor):
            return as_parameter(parts, requires_grad)
        device = parts["elements"].device  # type: ignore[union-attr]
        self: ScaledTensor = wrapper(cls, shape, strides=strides_of(shape, turned), dtype=dtype, device=device)
        for name in PARTS:
            setattr(self, name, parts.get(name))
        self.form = form
        self.turned = turned
        return self

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Nothing is left to do."""

    # ---- To and from dlfp4

    @staticmethod
    def from_dlfp4(q: dlfp4.ScaledTensor, dtype: torch.dtype = torch.bfloat16) -> ScaledTensor:
        """The tensor over the memory of a :class:`dlfp4.ScaledTensor`.

        Zero points of 4 bits whose rows do not end on bytes are copied, to one a byte.

        Parameters
        ----------
        q : dlfp4.ScaledTensor
            On the host, or a GPU that PyTorch sees.
        dtype : torch.dtype
            float32, bfloat16, float16 or float64: what it counts as.

        Raises
        ------
        BufferError
            PyTorch cannot hold a part: elements or scales of a type that it lacks.
        TypeError
            `q` is not a ScaledTensor; or `dtype` is another type.
        """
        made: ScaledTensor = from_dlfp4(q, dtype)
        return made

    def to_dlfp4(self) -> dlfp4.ScaledTensor:
        """The :class:`dlfp4.ScaledTensor` over the same memory."""
        q = restore(self)
        return q.mT if self.turned else q

    def __dlfp4_scaled__(self, copy: bool | None = None) -> dlfp4.ScaledTensor:
        """What dlfp4's own functions take this for; nothing is copied, whatever `copy` says."""
        return self.to_dlfp4()

    def __dlfp4_outline__(self) -> dlfp4.Tensor | dlfp4.ScaledTensor:
        """What a TensorProto says of the tensor, which need have no memory."""
        return outline(self.__dlfp4_parts__())

    def __dlfp4_parts__(self) -> Parts:
        """The parts as ``torch.ops.dlfp4`` takes them."""
        return parts_of(self)

    # ---- What it is

    @property
    def encoding(self) -> Encoding:
        """How the parts are stored."""
        return Encoding.parse(self.form)

    @property
    def format(self) -> str:
        """The name of the format, a row of :func:`dlfp4.formats`."""
        return self.encoding.format

    @property
    def axis(self) -> int:
        """-1 or -2, along which blocks run."""
        return -3 - self.encoding.axis if self.turned else self.encoding.axis

    def dequantize(self, dtype: _DType | None = None) -> torch.Tensor:
        """The values as a plain tensor; gradients pass through.

        Parameters
        ----------
        dtype : dtype-like, optional
            float32, bfloat16, float16 or float64, which has the values of float32. Default: the type of this tensor,
            whereas that of :func:`dlfp4.torch.dequantize` is float32.
        """
        return values_of(self, dtype)

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return described(self)

    # ---- What PyTorch asks of a tensor that is made of others

    @classmethod
    def __torch_dispatch__(
        cls,
        function: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = handled(function, args, kwargs or {})
        return decomposed(function, args, kwargs or {}) if result is NotImplemented else result

    def __tensor_flatten__(self) -> tuple[list[str], Context]:
        return [name for name in PARTS if getattr(self, name) is not None], (self.form, self.dtype, self.turned)

    @staticmethod
    def __tensor_unflatten__(
        parts: Mapping[str, torch.Tensor], context: Context, size: Shape, stride: Shape
    ) -> ScaledTensor:
        form, dtype, turned = context
        return ScaledTensor(parts, form, size, dtype, turned)

    def _stable_hash_for_caching(self) -> str:
        """What compiled code depends on, as a text: PyTorch keeps that code in files."""
        parts = [
            (name, part.dtype, part.device, tuple(part.shape), part.stride(), part.storage_offset())
            for name, part in present(self).items()
        ]
        return repr((self.form, self.dtype, self.turned, tuple(self.shape), self.requires_grad, parts))

    # ---- Copies and pickles, by the parts: PyTorch's own would copy ``__dict__``, and each part in it as it lies

    def __deepcopy__(self, memo: dict[int, Any]) -> ScaledTensor:
        if id(self) in memo:
            found: ScaledTensor = memo[id(self)]
            return found
        if not self.is_leaf:
            raise RuntimeError(f"{described(self)} is a result that has a gradient; copy its .detach()")
        linear = plain(self)
        made = memo[id(self)] = like(linear, copy.deepcopy(present(linear), memo))
        made.requires_grad_(self.requires_grad)
        made.__dict__.update(copy.deepcopy(attributes_of(self), memo))
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        linear = plain(self)
        parts = {name: (as_bytes(stored(part)), part.dtype) for name, part in present(linear).items()}
        context = (linear.form, tuple(linear.shape), linear.dtype, linear.turned)
        return rebuild, (parts, *context, self.requires_grad, attributes_of(self))

    # ---- Shards of FSDP (torch.distributed.fsdp.fully_shard)

    def fsdp_pre_all_gather(
        self,
        mesh: Any,
        outer_size: Shape,
        outer_stride: Shape,  # noqa: ARG002  (FSDP counts the parameters)
        module: torch.nn.Module,  # noqa: ARG002
        mp_policy: Any,  # noqa: ARG002
    ) -> Any:
        """What a shard gives to the others."""
        return HANDLERS["fsdp_pre_all_gather"](self, mesh, tuple(outer_size))

    def fsdp_post_all_gather(
        self, outputs: Sequence[torch.Tensor], whole: Any, dtype: torch.dtype, *, out: ScaledTensor | None = None
    ) -> Any:
        """The whole tensor, of what all shards gave."""
        return HANDLERS["fsdp_post_all_gather"](self, outputs, whole, dtype, out)

    # ---- Memory: that of the parts, for the tensor has none of its own

    @property
    def data(self) -> ScaledTensor:
        """The tensor without its gradient; assigning to it brings other parts."""
        found: ScaledTensor = self.detach()
        return found

    @data.setter
    def data(self, source: ScaledTensor) -> None:
        if not isinstance(source, ScaledTensor):
            raise TypeError(
                f".data of {described(self)} cannot become a {type(source).__name__}: expected a ScaledTensor; "
                f"quantize it first, by dlfp4.torch.quantize"
            )
        torch.Tensor.data.__set__(self, source)
        for name in OWN:
            setattr(self, name, getattr(source, name))

    @property
    def nbytes(self) -> int:
        """Bytes of the parts; ``numel() * element_size()`` are those of the values."""
        return sum(part.nbytes for part in present(self).values())

    def data_ptr(self) -> int:
        """Where the elements lie, by which tied weights are found."""
        return self.elements.data_ptr()  # type: ignore[no-any-return]

    def share_memory_(self) -> ScaledTensor:
        """Move the parts to memory that processes share; those of a prepared weight get their former order."""
        if not self.is_shared():
            self.data = mapped(plain(self), torch.Tensor.share_memory_)
        return self

    def is_shared(self) -> bool:
        """Whether all parts are."""
        return all(part.is_shared() for part in present(self).values())


@torch.compiler.disable(  # type: ignore[untyped-decorator]
    reason="dlfp4's own tensors enter a graph as constants or arguments: make them before it"
)
def from_dlfp4(q: dlfp4.ScaledTensor, dtype: torch.dtype) -> ScaledTensor:
    """See :meth:`ScaledTensor.from_dlfp4`."""
    if not isinstance(q, _core.ScaledTensor):
        raise TypeError(f"q is of type {type(q).__name__}; expected a dlfp4.ScaledTensor, from dlfp4.quantize")
    if _core._is_turned(q):
        return turn(from_dlfp4(q.mT, dtype))
    q = on_bytes(q)
    ours = (q.data, q.scales, q.global_scale, q.encode_scale, *(offset_parts(q).values() or [None]))
    parts = {name: None if part is None else as_native(part) for name, part in zip(PARTS, ours, strict=True)}
    return ScaledTensor(parts, str(Encoding.of(q)), q.shape, checked_dtype(dtype))


class TracedTensor(ScaledTensor):
    """A ScaledTensor within a trace of whole operations, as torch.export makes it: for PyTorch's mode there gives up
    what is made of other tensors. Its operations pass that mode by; those of its parts do not.
    """

    # While it traces, torch.export replaces that of a type of which it was given tensors, and looks these up (2.13).
    __getattribute__ = torch.Tensor.__getattribute__

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        below = torch._C._AutoDispatchBelowAutograd()  # where operations come whole, as in inference mode
        with torch._C.DisableTorchFunctionSubclass(), traces_whole(False), below, PlainTraced():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not is_traced_whole():  # PyTorch would keep it as a constant, without memory
            raise RuntimeError(
                f"{function} of {owner_among(args)} behind the trace that made it: such a trace, as torch.export's, "
                f"has no form for a ScaledTensor among its results; return .dequantize(), or .elements, .scales and "
                f".global_scale"
            )
        with traces_whole(True):
            result = handled(function, args, kwargs or {})
        return decomposed(function, args, kwargs or {}) if result is NotImplemented else result


def handled(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What the table has for an operation; NotImplemented where it has nothing, or leaves it to what it is made of."""
    handler = HANDLERS.get(function) or HANDLERS.get(str(function))
    return NotImplemented if handler is None else handler(function, *args, **kwargs)


def decomposed(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """An operation by those that it is made of, which in inference mode comes whole."""
    result = function.decompose(*args, **kwargs)
    if result is NotImplemented:
        raise NotImplementedError(f"{function} of {owner_among(args)}: {REMEDY}")
    return result


REMEDY = "its codes are not numbers to PyTorch; call .dequantize() for the values, and quantize the result again"


def as_bytes(part: torch.Tensor) -> torch.Tensor:
    """A part, or the bytes of FP8: what ``pickle.dumps`` makes of that PyTorch 2.13 cannot load."""
    return part.view(torch.uint8) if part.dtype.itemsize == 1 else part


def stored(part: torch.Tensor) -> torch.Tensor:
    """A part as files have it: nothing in no memory, for torch.save refuses two types at one address (2.13)."""
    return part if part.numel() else torch.empty_like(part)


def rebuild(
    parts: Mapping[str, tuple[torch.Tensor, torch.dtype]],
    form: str,
    shape: Shape,
    dtype: torch.dtype,
    turned: bool,
    requires_grad: bool,
    attributes: Mapping[str, Any],
) -> ScaledTensor:
    """Called by pickles: the tensor of its parts."""
    named = {name: part.view(kind) for name, (part, kind) in parts.items()}
    self = ScaledTensor(named, form, shape, dtype, turned)
    self.__dict__.update(attributes)
    return self.requires_grad_(requires_grad)  # type: ignore[no-any-return]


# torch.load with weights_only takes these alone, which check what they are given.
torch.serialization.add_safe_globals([rebuild, _core._restore_tensor, _core._restore_scaled, _core._restore_turned])


# ---- Parts


def wrapper(cls: type, shape: Shape, **options: Any) -> Any:
    """A tensor without memory, for which PyTorch's own functions in C raise where they would give out a null pointer;
    no inference tensor, for PyTorch would refuse it as a view of one that is none.
    """
    if cls is ScaledTensor and is_traced_whole():
        cls = TracedTensor
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
        made = torch.Tensor._make_wrapper_subclass(cls, shape, **options)
    torch._C._set_throw_on_mutable_data_ptr(made)
    return made


def as_parameter(x: torch.Tensor, requires_grad: bool) -> ScaledTensor:
    """A quantized tensor as a parameter; TypeError for another one."""
    if not isinstance(x, ScaledTensor):
        raise TypeError(
            f"a quantized parameter cannot become a {type(x).__name__} of {x.dtype}, shape {tuple(x.shape)}: expected "
            f"a ScaledTensor. State dicts have its parts instead; accelerate takes parameters themselves by "
            f"state_dict=dict(model.named_parameters())"
        )
    made: ScaledTensor = torch.nn.Parameter(x, requires_grad=requires_grad)
    return made


def strides_of(shape: Shape, turned: bool) -> Shape:
    """Row-major strides of the tensor that the parts make, in the order of the dimensions of its transpose."""
    if turned:
        *leading, rows, columns = strides_of((*shape[:-2], shape[-1], shape[-2]), False)
        return (*leading, columns, rows)
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))


def on_bytes(q: dlfp4.ScaledTensor) -> dlfp4.ScaledTensor:
    """The tensor; zero points of 4 bits, which PyTorch holds as bytes, are one a byte where rows end between bytes."""
    part = q.zero_points
    if part is None or part.dtype.name not in SUBBYTE or part.shape[-1] % 2 == 0:
        return q
    codes = part.to_device("cpu").to_numpy().astype({"uint4": "uint8", "int4": "int8"}[part.dtype.name])
    apart = _core.asarray(codes).to_device(part.device)
    return _core.ScaledTensor.from_parts(
        q.data, q.scales, format=q.format, axis=q.axis, shape=q.shape, hadamard=q.hadamard, zero_points=apart
    )


def as_native(part: dlfp4.Tensor) -> torch.Tensor:
    """A part in PyTorch, over the same memory; elements below 8 bits as bytes."""
    return (part.view("uint8") if part.dtype.name in SUBBYTE else part).to_torch(copy=False)


def element_of(format: str) -> str:
    """The name of a format's element type."""
    name: str = _core._find_format(format).element.name
    return name


def attributes_of(q: ScaledTensor) -> dict[str, Any]:
    """What else was set on the tensor, by users and by PyTorch: that it is a parameter."""
    return {name: value for name, value in q.__dict__.items() if name not in (*OWN, "lent")}


def present(q: ScaledTensor) -> dict[str, torch.Tensor]:
    """The parts that are there, by name."""
    return {name: part for name in PARTS if (part := getattr(q, name)) is not None}


def like(
    q: ScaledTensor,
    parts: Mapping[str, torch.Tensor | None],
    *,
    shape: Shape | None = None,
    dtype: torch.dtype | None = None,
    turned: bool | None = None,
) -> ScaledTensor:
    """A tensor of other parts that is otherwise as `q`."""
    return type(q)(
        parts,
        q.form,
        q.shape if shape is None else shape,
        q.dtype if dtype is None else dtype,
        q.turned if turned is None else turned,
    )


def mapped(q: ScaledTensor, change: Callable[[torch.Tensor], torch.Tensor], **options: Any) -> ScaledTensor:
    """The tensor with each of its parts changed."""
    return like(q, {name: change(part) for name, part in present(q).items()}, **options)


def turn(q: ScaledTensor) -> ScaledTensor:
    """The last two dimensions exchanged: the parts stay."""
    shape = (*q.shape[:-2], q.shape[-1], q.shape[-2])
    return like(q, present(q), shape=shape, turned=not q.turned)


def turned_dim(dim: int, count: int) -> int:
    """Which of so many dimensions one of them is once the last two are exchanged."""
    return {count - 1: count - 2, count - 2: count - 1}.get(dim, dim)


def parts_of(q: ScaledTensor) -> Parts:
    """What the operations take."""
    shape = tuple(q.shape)
    stored = (*shape[:-2], shape[-1], shape[-2]) if q.turned else shape
    parts = Parts(q.elements, q.scales, q.global_scale, q.form, stored, q.offsets)
    return parts.mT if q.turned else parts


def as_they_lie(q: ScaledTensor) -> Parts:
    """The parts of the tensor that they make, of which `q` may be the transpose."""
    return parts_of(turn(q) if q.turned else q)


def restore(q: ScaledTensor) -> dlfp4.ScaledTensor:
    """dlfp4's tensor over the parts, of which `q` is the transpose where it is turned."""
    made = share_quantized(as_they_lie(q), q.encoding)
    return made if q.encode_scale is None else _core._with_encode_scale(made, q.encode_scale)


def plain(q: ScaledTensor) -> ScaledTensor:
    """The tensor in a layout that lies as the tensor does: a prepared weight in the order that it had before."""
    if q.encoding.scale_layout != "prepared":
        return q
    linear = ScaledTensor.from_dlfp4(restore(q).with_scale_layout("linear"), q.dtype)
    return turn(linear) if q.turned else linear


def checked_dtype(dtype: Any) -> torch.dtype:
    """A float type that tensors decode to; TypeError for any other."""
    if not isinstance(dtype, torch.dtype) or dtype not in DTYPES:
        names = ", ".join(map(str, DTYPES))
        raise TypeError(
            f"dtype={dtype}: a ScaledTensor decodes to {names}; for another type call .dequantize().to(dtype)"
        )
    return dtype


def described(q: ScaledTensor) -> str:
    """What a tensor is, in a line."""
    layout = "" if q.encoding.scale_layout == "linear" else f", scale_layout={q.encoding.scale_layout!r}"
    axis = "" if q.axis == -1 else f", axis={q.axis}"
    return (
        f"ScaledTensor(shape={tuple(q.shape)}, format={q.format!r}{axis}{layout}, dtype={q.dtype}, "
        f"device={str(q.device)!r})"
    )


def owner_among(args: Iterable[Any]) -> str:
    """The first tensor among arguments that is made of others, described."""
    for each in args:
        if hasattr(each, "__tensor_flatten__"):
            return repr(each)
        if isinstance(each, (list, tuple)) and (found := owner_among(each)):
            return found
    return ""


# ---- Decoded: gradients are those of the values


def values_of(q: ScaledTensor | Arranged, dtype: _DType | None) -> torch.Tensor:
    """The values in a type, or the tensor's own, with their gradient."""
    kind = q.dtype if dtype is None else checked_dtype(native_dtype(dtype))
    if not is_differentiated(q):
        return decode(q, kind)
    follow = Dequantize if torch.compiler.is_compiling() else DequantizeEagerly
    return follow.apply(q, kind)


def native_dtype(dtype: _DType) -> Any:
    """PyTorch's type of what users name; the name where it has none."""
    if isinstance(dtype, torch.dtype):
        return dtype
    name = _core._parse_dtype(dtype).name
    return getattr(torch, name, name)


def decode(q: ScaledTensor | Arranged, dtype: torch.dtype) -> torch.Tensor:
    """The values; float64 has those of float32, to which products of scales are rounded."""
    if dtype is torch.float64:
        return decode(q, torch.float32).to(dtype)
    if not isinstance(q, ScaledTensor):
        return q.arrange(decode(q.whole, dtype))
    values = functions.dequantize(as_they_lie(q), dtype)
    return values.mT if q.turned else values


class Dequantize(torch.autograd.Function):  # type: ignore[misc]
    """The values of a tensor, which gets their gradient."""

    @staticmethod
    def forward(q: ScaledTensor | Arranged, dtype: torch.dtype) -> torch.Tensor:
        """The values."""
        return decode(q, dtype)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004
        """The gradient of the values."""
        return gradient, None


class DequantizeEagerly(Dequantize):
    """The same with another rule, with which Dynamo takes no Function."""

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Any) -> None:  # noqa: ARG004
        """The type of the values."""
        context.dtype = inputs[1]

    @staticmethod
    def jvp(context: Any, tangent: torch.Tensor, _: None) -> torch.Tensor:
        """The derivative of the values."""
        return tangent.to(context.dtype)
