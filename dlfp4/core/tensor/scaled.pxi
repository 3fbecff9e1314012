# ScaledTensor: elements, their scales, and the format and shape that say how the two belong together. It never changes.

_Parts = collections.namedtuple("_Parts", "data scales global_scale", module="dlfp4._core")
_Parts.__doc__ = """The arrays of a :class:`ScaledTensor` in one library: data, scales, global_scale (or None)."""

_IntegerParts = collections.namedtuple("_IntegerParts", "data scales global_scale zero_points biases",
                                       module="dlfp4._core")
_IntegerParts.__doc__ = """The same of int4 and uint4: global_scale is None, at most one of the last two is there."""


cdef struct Prepared:      # of a tensor in the layout "prepared": see prepared.pxi
    int64_t rows, columns  # as stored without it
    int largest            # byte of its scales, where they are powers of two
    bint exact_in_half     # float16 holds its values


@cython.final
cdef class ScaledTensor:
    """A block-scaled tensor: ``value = data * scale of its block (* global_scale)``; of integers,
    ``(data - zero point) * scale`` or ``data * scale + bias``.

    It comes from :func:`quantize` or :meth:`from_parts`. A tensor of shape ``(..., K)`` is stored as a matrix of
    M = prod(shape[:-1]) rows and K columns, with blocks along its rows (``axis=-1``) or its columns (``axis=-2``).

    Attributes
    ----------
    data : Tensor
        The elements, packed: ``(M, K)``. With ``axis=-2`` elements below 8 bits are stored transposed, ``(K, M)``.
    scales : Tensor
        Decode scales, of the format's type or, where that is float32, of a type that holds them exactly:
        ``(M, ceil(K / block))``. With ``axis=-2``: ``(K, ceil(M / block))`` for elements below 8 bits,
        ``(ceil(M / block), K)`` for bytes. Square blocks divide both dimensions; one scale a tensor is 0-d, one a line
        ``(M, 1)`` or, with ``axis=-2``, ``(1, K)``. Layouts other than "linear" have their padded shape, with a row for
        each line of blocks, as matrix kernels read them: with ``axis=-2`` that is ``(K, ceil(M / block))`` for bytes,
        too.
    global_scale : Tensor or None
        float32, in formats with two levels of scales: a decode scale, which checkpoints call ``weight_scale_2``. 0-d;
        ``(M,)``, one for each line of blocks (``(K,)`` with ``axis=-2``); or ``(E,)``, one for each matrix of a stack.
    zero_points, biases : Tensor or None
        int4 and uint4: one for each scale, in the shape of `scales`; one of the two at most. Zero points are uint8,
        int8, uint4 or int4; without them they count as 0. Biases are float32, bfloat16 or float16.
    encode_scale : Tensor or None
        The global scale as an encode scale, where :meth:`from_parts` was given one: float32, as it was given. Its bits
        cannot always be computed from `global_scale`. Operations do not read it.
    format : Format
        The format, which equals its name.
    axis : int
        -1 or -2, along which the blocks run.
    scale_layout : str
        "linear", or one of :meth:`with_scale_layout`. After :meth:`prepare` it may be "prepared": `data` and `scales`
        are then bytes.
    shape : tuple of int
        Of the tensor that was quantized, without padding.
    receipt : Receipt or None
        How exactly the values came over, of what :meth:`to`, :func:`concatenate` and :func:`stack` return. It tells of
        that call: pickles and deep copies have none.
    """
    cdef object __weakref__
    cdef readonly Tensor data
    cdef readonly Tensor scales
    cdef readonly Tensor global_scale
    cdef readonly Tensor encode_scale
    cdef Tensor offsets      # zero points or biases, which its type tells
    cdef readonly object format
    cdef readonly int axis
    cdef readonly str scale_layout
    cdef readonly tuple shape
    cdef readonly object receipt
    cdef int number          # the format's row: asking `format` takes Python's time
    cdef int scale_layout_row   # its number; NO_SCALE_LAYOUT of "prepared"
    cdef int divides         # blocks are known to divide the shape; threads that quantize into one result set both
    cdef int is_writable     # each part is known to have memory of its own, which may be written to
    cdef Prepared prepared   # all zero where it is not
    cdef bint turned         # a transposed stack: the parts are those of its mT
    cdef uint32_t rotation   # the kernels' Hadamard transform; 0 where there is none

    def __init__(self, *args, **options):
        raise TypeError("a ScaledTensor is made by dlfp4.quantize or ScaledTensor.from_parts")

    @staticmethod
    def from_parts(data, scales, global_scale=None, *, format, axis=-1, scale_layout="linear", shape=None,
                   encode_scale=None, hadamard=None, zero_points=None, biases=None):
        """A ScaledTensor of existing parts, such as those of a checkpoint, sharing their memory.

        All parts lie on the host, pinned or not, or all on one device. CUDA managed memory counts as lying with the
        other parts; where those are on the host, the call waits for its stream.

        Parameters
        ----------
        data : producer
            The packed elements, ``(..., K)``, or their bytes as uint8, ``(..., K * bits / 8)``. Elements below 8 bits
            that come one a byte, as in NumPy, are copied and packed.
        scales : producer
            The decode scales, of the format's scale type or as uint8. Formats with float32 scales take bfloat16,
            float16 and float8_e8m0fnu (or its bytes as uint8) as well. Their shape is that of :class:`ScaledTensor`,
            with the leading dimensions of `data`, or flat for layouts other than "linear".
        global_scale : float or producer, optional
            A decode scale, by which values are multiplied; None counts as 1. Libraries that keep an encode scale
            (FlashInfer, compressed-tensors) store its reciprocal. Any value is accepted, even 0. A number is copied to
            the device of `data`; managed memory then counts as that device's. Several are one for each row, in the
            shape of the leading dimensions, or one for each matrix of a stack ``(E, ..., N, K)``, in that of `E, ...`.
        format : Format or str
            See :func:`formats`.
        axis : {-1, -2}
            The axis along which blocks run.
        scale_layout : str
            The layout of `scales` in memory: "linear", or one of :meth:`with_scale_layout`.
        shape : tuple of int, optional
            The tensor's shape, where the data is padded or has other leading dimensions.
        encode_scale : float or producer, optional
            Instead of `global_scale`, its reciprocal, as those libraries store it. The result keeps it as an attribute,
            because 17 % of all float32 numbers are not the rounded reciprocal of any float32 number: they could not be
            computed again from `global_scale`.
        hadamard : sequence of int or int, optional
            The parts are those of a tensor that was transformed: its signs, or their seed; see :func:`quantize`.
        zero_points : producer, optional
            int4 and uint4: ``value = (data - zero point) * scale``, with a zero point for each scale, in the shape of
            `scales`: uint4 or int4, packed or one a byte (which are copied and packed), uint8 or int8.
        biases : producer, optional
            int4 and uint4: ``value = data * scale + bias``, with a bias for each scale (MLX): float32, bfloat16 or
            float16.

        Raises
        ------
        ValueError
            `global_scale` and `encode_scale`, or `zero_points` and `biases`, are both given; the parts do not fit
            together, or they lie on different devices.
        TypeError
            An element type that is not the format's.
        BufferError
            The strides of a part cannot be described, such as rows of FP4 that do not start on bytes.
        """
        cdef ScaledTensor self
        cdef str layout = parse_layout(scale_layout)
        row, axis = _find_format(format), parse_axis(axis)
        if zero_points is not None and biases is not None:
            raise ValueError("zero_points and biases are both given; a tensor has one of them, or neither")
        offsets = zero_points if biases is None else biases
        if encode_scale is None:
            return with_rotation(
                assemble(data, scales, global_scale, row, axis, layout, shape, offsets, biases is not None),
                parse_hadamard(hadamard))
        if global_scale is not None:
            raise ValueError("global_scale and encode_scale are both given; each is the reciprocal of the other: "
                             "give one")
        stored = as_encode_scale(encode_scale)
        self = assemble(data, scales, reciprocal_of(stored), row, axis, layout, shape, offsets,
                        biases is not None)
        self.encode_scale = stored
        return with_rotation(self, parse_hadamard(hadamard))

    @property
    def hadamard(self):
        """The signs of the Hadamard transform that :meth:`dequantize` undoes, a tuple of 16; None where there is
        none."""
        return signs_of(self.rotation)

    @property
    def zero_points(self):
        """The zero points of blocks of integers, or None."""
        return None if self.offsets is None or is_float(self.offsets.row) else self.offsets

    @property
    def biases(self):
        """The biases of blocks of integers, or None."""
        return self.offsets if self.offsets is not None and is_float(self.offsets.row) else None

    @property
    def device(self):
        """The :class:`Device` on which the data lies."""
        return self.data.device

    @property
    def nbytes(self):
        """Bytes of all parts."""
        return sum([part.nbytes for part in parts_of(self)])

    @property
    def ndim(self):
        """Number of dimensions of the tensor."""
        return len(self.shape)

    def __contains__(self, value):
        raise TypeError("a ScaledTensor does not compare its elements; ask .dequantize().to_numpy()")

    def __bool__(self):
        raise TypeError("a ScaledTensor has no truth value; compare its elements with .dequantize().to_numpy(), or ask "
                        "for its .shape")

    @property
    def mT(self):
        """The last two dimensions exchanged, without a copy; ValueError unless there are two.

        Of a stack ``(E, ..., N, K)`` with blocks along its last axis it is what :func:`grouped_matmul` takes:
        ``mT``, :meth:`dequantize`, :meth:`prepare`, :meth:`to_device` and ``[k]`` serve it too, all else refuses it.
        """
        if len(self.shape) > 2:
            return turn_stack(self)
        if len(self.shape) < 2:
            raise ValueError(f"mT of a ScaledTensor needs two dimensions or more; this one has shape {self.shape}")
        return turn_matrix_of(self)

    def __getitem__(self, key):
        """A part of the tensor over the same memory: rows and columns between blocks, or tensors of a stack.

        Parameters
        ----------
        key : int, slice, ellipsis, or tuple of these
            As NumPy's: ``q[:32]``, ``q[:, 64:128]``, ``q[..., -64:]``. Slices have no step, and start and end where a
            block does: at multiples of its extent, and at the tensor's end. Of a stack ``(E, ..., N, K)``, such as
            experts' weights, ``q[k]`` is one tensor and ``q[2:5]`` some; the rows that are taken must follow one
            another. What is prepared is cut between blocks of 128 rows alone.

        Returns
        -------
        ScaledTensor
            It shares the global scale, too, so that writing to it by ``quantize(out=...)`` changes that of the whole.
            Zero points of 4 bits whose part would not start on a byte are copied to one a byte.

        Raises
        ------
        ValueError
            A slice cuts through a block (the message says where borders are) or has a step; scales are neither linear
            nor prepared.
        BufferError
            The rows do not follow one another: ``q[:, :32]`` of a stack of several.
        IndexError, TypeError
            As NumPy; an integer for a row or a column.

        Examples
        --------
        >>> import numpy as np, dlfp4
        >>> q = dlfp4.quantize(np.eye(64, dtype="float32"), "mxfp4")
        >>> q[:8].shape, q[:, 32:].shape
        ((8, 64), (64, 32))
        """
        return slice_scaled(self, key)

    def to(self, target, *, recipe=None):
        """The tensor in another block-scaled format, on codes and scales wherever these suffice.

        Where the new format holds the products of codes and scales, codes are kept, or renamed to the same values, and
        scales go through a table: MXFP4 to MXFP8 always, MXFP4 to NVFP4 where the exponents of scales span 18 powers of
        two or fewer. Other blocks are decoded and quantized with the least squared error. ``.receipt`` of the result
        tells how many blocks decode to the same numbers, and the largest error of the others.

        Parameters
        ----------
        target : Format, Recipe or str
            A row of :func:`formats`; or a convention, whose format of the same elements is taken, else the first of
            its widest elements: "modelopt", "mlx" (whose NVFP4 has no global scale) or another of
            ``checkpoints.CONVENTIONS``, "ggml", "torchao"; or a recipe, by which the values are quantized again to the
            format that they are in. "deepseek", which is both, is the convention.
        recipe : Recipe or str, optional
            How blocks that are not exact are quantized.

        Returns
        -------
        ScaledTensor
            With linear scales. Memory is shared where it does not change. Incomplete last blocks are completed with
            zeros.

        Raises
        ------
        ValueError
            No format, convention or recipe has that name.
        BufferError
            Memory that neither the CPU nor CUDA can read.

        Notes
        -----
        On a CUDA device the bytes are those of the host. There as well the host makes tables of scales, and chooses
        scales for the blocks of NVFP4 that no code holds closely enough; all else runs on the device.

        The global scale of NVFP4 made of MX formats is the power of two under which the most blocks are exact; other
        sources get the usual one. FP8 scales made of NVFP4 are the global scale times powers of two; made of powers of
        two, they are powers of two. Squares and whole tensors hold the range of one scale: small elements may be lost.

        Examples
        --------
        >>> import numpy as np, dlfp4
        >>> q = dlfp4.quantize(np.linspace(-6, 6, 64, dtype="float32").reshape(2, 32), "mxfp4")
        >>> q.to("nvfp4").receipt
        Receipt(blocks=2, exact=2, largest_error=0.0)
        """
        return TRANSCODER[0](self, target, recipe)

    def dequantize(self, dtype="float32"):
        """The values as a :class:`Tensor`; see :func:`dequantize`."""
        return dequantize(self, dtype)

    def with_scale_layout(self, name, *, fill=None):
        """The same tensor with its scales in another layout; itself where they are in it.

        It shares the data and the global scale, so that ``quantize(..., out=...)`` to either leaves the other one with
        scales that are not its own.

        Parameters
        ----------
        name : str
            "linear"; of scales of a byte "128x4" (cuBLAS, CUTLASS, torchao's "blocked"), "8x4" (TensorRT-LLM), "aiter"
            (AITER's shuffle), "n32k4" (AITER's for gfx1250) and "deepgemm"; of float32 scales "cublas_1x128" and
            "cublas_128x128" (cuBLAS, TransformerEngine), for blocks of that size.
        fill : int, optional
            The byte that is written to the padding. Default 0; AMD's libraries write 127.

        Raises
        ------
        ValueError
            An unknown layout, or one that the format's scales do not have.

        Notes
        -----
        Where scale (i, j) of R lines and C blocks lies, counted in scales, with Rp and Cp padded to the multiples in
        parentheses:

        - "128x4" (128, 4): ``((i//128)*(Cp/4) + j//4)*512 + (i%32)*16 + ((i%128)//32)*4 + j%4``
        - "8x4" (8, 4): ``((i//8)*(Cp/4) + j//4)*32 + (i%8)*4 + j%4``
        - "aiter" (256, 8): ``(i//32)*32*Cp + (j//8)*256 + (j%4)*64 + (i%16)*4 + ((j%8)//4)*2 + (i%32)//16``
        - "n32k4" (32, 4): ``(i//32)*32*Cp + (j//4)*128 + (i%32)*4 + j%4``
        - "deepgemm" (4, 4): ``(j//4*Rp + i)*4 + j%4``. The scales have shape (Cp/4, 4 Rp); their int32 view,
          transposed, is DeepGEMM's packed UE8M0.
        - "cublas_1x128" (4, 1): ``j*Rp + i``. The scales have shape (C, Rp).
        - "cublas_128x128" (1, 4): ``i*Cp + j``
        """
        return relayout(plain(self), name, parse_fill(fill, 0))

    def prepare(self):
        """The same tensor in the order that suits it best as a weight of :func:`matmul`: prepare once, multiply often.

        On a CUDA device nvfp4, mxfp4, mxfp8_e4m3 and fp8_e4m3 with blocks along rows are stored in the order in which
        the matrix kernels read them; the call waits for the device. The result serves wherever the tensor does, and
        ``with_scale_layout("linear")`` restores the same codes and scales; codes under a zero scale, whose value is
        zero, come back as zeros of the same sign.

        All other tensors come back with linear scales: other formats, tensors on the host, and those that the prepared
        order cannot hold exactly (NaN or negative scales, power-of-two scales above 2**123 or more than 2**120 apart,
        NaN elements). A tensor of more than two dimensions with blocks along axis -2 is returned unchanged.

        Returns
        -------
        ScaledTensor
            The tensor itself, if there is nothing to do.

        Examples
        --------
        >>> import numpy as np, dlfp4
        >>> w = dlfp4.quantize(np.eye(32, dtype="float32"), "mxfp4").prepare()
        >>> dlfp4.matmul(np.ones((2, 32), "float32"), w.mT).shape
        (2, 32)
        """
        return prepare_tensor(self)

    def to_device(self, device):
        """The tensor with all parts on `device`; itself if it lies there."""
        target = parse_device(device)
        if all([lies_on(part, target) for part in parts_of(self)]):
            return self
        return change_parts(self, lambda part: part.to_device(target))

    def to_numpy(self, copy=None):
        """The parts as NumPy arrays; see :meth:`Tensor.to_numpy`."""
        return export_parts(self, "to_numpy", copy)

    def to_torch(self, copy=None):
        """The parts as PyTorch tensors; see :meth:`Tensor.to_torch`. It has no int4: those are bytes of two, as uint8
        (..., K/2), and zero points lie one a byte."""
        return export_parts(self, "to_torch", copy)

    def to_jax(self, copy=None):
        """The parts as JAX arrays; see :meth:`Tensor.to_jax`."""
        return export_parts(self, "to_jax", copy)

    def to_cupy(self, copy=None):
        """The parts as CuPy arrays; see :meth:`Tensor.to_cupy`. It has no int4 either: see :meth:`to_torch`."""
        return export_parts(self, "to_cupy", copy)

    def to_torchao(self, dtype="bfloat16"):
        """torchao's NVFP4Tensor or MXTensor over the same memory; :func:`asarray` takes them back.

        Parameters
        ----------
        dtype : dtype-like
            The element type that torchao shows for the tensor (``orig_dtype``): bfloat16, float32 or float16.

        Returns
        -------
        torchao tensor
            With swizzled scales where the layout is "128x4". FP6 is copied, as torchao keeps one element a byte. Blocks
            along columns become the transpose of such a tensor.

        Raises
        ------
        ValueError
            torchao does not have the format: ``q.to("torchao")`` gives a tensor that is.
        """
        return frameworks.load("torchao").to_torchao(self, dtype)

    def to_like(self, x, /):
        """The parts as objects of x's framework, on x's device; see :meth:`Tensor.to_like`."""
        source = plain(self)
        return hand_over(source, lambda part: as_native_like(part, x))

    def __reduce__(self):   # see pickling.pxi
        if self.turned:
            return _restore_turned, (self.mT,)
        if is_prepared(self):
            return plain(self).__reduce__()
        return _restore_scaled, (self.data, self.scales, self.global_scale, self.format.name, self.axis,
                                 self.scale_layout, self.shape, self.encode_scale, self.hadamard, self.offsets)

    def __copy__(self):
        return self   # it never changes

    def __array__(self, dtype=None, copy=None):
        raise TypeError("a ScaledTensor is not an array, and NumPy would wrap it as an object; call .dequantize() for "
                        "its values, .to_numpy() for its parts, dlfp4.matmul(x, w.mT) for a product")

    def __repr__(self):
        """The values of a small tensor, where the host can read them; then what the tensor is."""
        return shown(self, self.data)


cdef ScaledTensor make_scaled(Tensor data, Tensor scales, Tensor global_scale, format, int axis, str scale_layout,
                              tuple shape, uint32_t rotation, Tensor offsets):
    cdef ScaledTensor self = ScaledTensor.__new__(ScaledTensor)
    self.data = data
    self.scales = scales
    self.global_scale = global_scale
    self.format = format
    self.number = format.number
    self.axis = axis
    self.scale_layout = scale_layout
    self.scale_layout_row = SCALE_LAYOUTS.get(scale_layout, NO_SCALE_LAYOUT)
    self.shape = shape
    self.rotation = rotation
    self.offsets = offsets
    return self


cdef ScaledTensor another(ScaledTensor self):
    """The same tensor, without its receipt, for a field to be set before anybody sees it."""
    cdef ScaledTensor made = make_scaled(self.data, self.scales, self.global_scale, self.format, self.axis,
                                         self.scale_layout, self.shape, self.rotation, self.offsets)
    made.encode_scale = self.encode_scale
    made.prepared = self.prepared
    made.turned = self.turned
    return made


cdef ScaledTensor change_parts(ScaledTensor self, change):
    """The same tensor of the parts that a function makes of its own."""
    if self.turned:
        return change_parts(self.mT, change).mT
    cdef ScaledTensor source = plain(self)
    parts = [None if part is None else change(part)
             for part in (source.data, source.scales, source.global_scale, source.offsets)]
    return as_encoded(self, make_scaled(parts[0], parts[1], parts[2], self.format, self.axis, source.scale_layout,
                                        self.shape, self.rotation, parts[3]))


cdef ScaledTensor turn_parts(ScaledTensor self):
    """The transpose, whose parts are the tensor's own."""
    cdef int ndim = len(self.shape)
    cdef ScaledTensor turned = another(self)
    turned.axis = -3 - self.axis
    turned.shape = (*self.shape[:ndim - 2], self.shape[ndim - 1], self.shape[ndim - 2])
    return turned


cdef ScaledTensor turn_matrix_of(ScaledTensor self):
    """The transposed matrix. Elements below 8 bits lie along blocks either way, and so do prepared ones; bytes stay."""
    cdef ScaledTensor turned = turn_parts(self)
    if not is_prepared(self) and not is_subbyte(self.data.row):
        turned.data = self.data.mT
        if self.scale_layout == "linear" and self.scales.dl.ndim == 2:
            turned.scales = self.scales.mT
    return turned


cdef ScaledTensor turn_stack(ScaledTensor self):
    """A transposed stack, or the stack of one."""
    cdef ScaledTensor turned
    if self.axis == -2 and not self.turned:
        raise ValueError(f"{summary_of(self)} is a stack with blocks along its columns, which may cross from one "
                         f"matrix to the next: quantize it along its last axis, or take one matrix, q[k].mT")
    turned = turn_parts(self)
    turned.turned = not self.turned
    return turned


def _is_turned(ScaledTensor self):
    """Whether it is a transposed stack."""
    return self.turned


def _refuse_turned(ScaledTensor self):
    """ValueError for a transposed stack."""
    if self.turned:
        raise ValueError(f"{summary_of(self)} is a transposed stack, which only grouped_matmul multiplies; pass its "
                         f".mT, one matrix of it ([k]), or .dequantize()")


cdef ScaledTensor with_rotation(ScaledTensor self, uint32_t rotation):
    """A tensor that nobody has seen, as one that was transformed."""
    self.rotation = rotation
    if self.data.size_:   # slices that hold nothing may be cut anywhere
        check_rotated(self)
    return self


cdef inline ScaledTensor as_encoded(ScaledTensor source, ScaledTensor self):
    """The tensor, whose global scale is that of `source` and goes by the same encode scale."""
    self.encode_scale = source.encode_scale
    return self


# dlfp4/transcode.py, which stands on the core and puts itself here.
cdef list TRANSCODER = [None]


def _set_transcoder(function):
    """What ScaledTensor.to calls."""
    TRANSCODER[0] = function


def _copied(ScaledTensor self):
    """The same tensor in memory of its own."""
    cdef ScaledTensor result = change_parts(self, lambda part: part.copy())
    if self.encode_scale is not None:
        result.encode_scale = self.encode_scale.copy()
    return result


def _with_receipt(ScaledTensor self, receipt):
    """The same tensor, and what became of the one that it was made of."""
    cdef ScaledTensor result = another(self)
    result.receipt = receipt
    return result


def _with_encode_scale(ScaledTensor self, encode_scale):
    """The same tensor, whose global scale was stored as the reciprocal of this one."""
    cdef ScaledTensor result = another(self)
    result.encode_scale = as_encode_scale(encode_scale)
    return result


cdef inline Tensor elements_of(x):
    return (<ScaledTensor> x).data if type(x) is ScaledTensor else x


cdef tuple parts_of(x):
    """The tensors that hold an operand."""
    if type(x) is not ScaledTensor:
        return (x,)
    cdef ScaledTensor self = x
    return tuple([part for part in (self.data, self.scales, self.global_scale, self.offsets) if part is not None])


cdef inline bint lies_across(ScaledTensor self) noexcept:
    """Whether blocks run across the stored rows: bytes along columns. Elements below 8 bits are stored transposed."""
    return self.axis == -2 and not is_subbyte(self.data.row)


cdef inline bint scales_whole(int format) noexcept:
    """Whether a format has one scale, of the whole tensor."""
    return dlfp4_formats[format].lines == 0


cdef int64_t lines_of_global_scale(ScaledTensor self) except -1:
    """How many lines share a global scale, where that is not one of the tensor; else 0."""
    cdef int64_t lines, count
    if self.global_scale is None or self.global_scale.dl.ndim == 0:
        return 0
    lines, count = as_lines(self.shape, self.axis)[0], self.global_scale.size_
    return max(1, lines // count) if count else 1


def _without_global_scale(ScaledTensor self):
    """The same tensor with a global scale of 1; not of prepared ones."""
    cdef ScaledTensor result = another(self)
    result.global_scale = result.encode_scale = None
    return result


cdef object export_parts(ScaledTensor given, str method, copy):
    return hand_over(plain(given), lambda part: getattr(part, method)(copy))


cdef object hand_over(ScaledTensor self, make):
    """The parts as `make` makes them; integers that a library has not, as bytes."""
    unit = self.global_scale
    if not self.format.has_integers:
        return _Parts(make(self.data), make(self.scales), None if unit is None else make(unit))
    zeros, biases = self.zero_points, self.biases
    return _IntegerParts(or_bytes(self.data, make, False), make(self.scales), None,
                         None if zeros is None else or_bytes(zeros, make, True),
                         None if biases is None else make(biases))


cdef object or_bytes(Tensor part, make, bint apart):
    """Packed integers, or their bytes where a library has no such type; `apart`: a byte each."""
    try:
        return make(part)
    except frameworks.RefusedError:
        if not is_subbyte(part.row):
            raise
    return make(one_a_byte(part) if apart else part.view("uint8"))


cdef Tensor one_a_byte(Tensor self):
    """Packed zero points as uint8, or int8."""
    if dtype_name(self) == "uint4":
        return reinterpret(repack(self, True, None), UINT8)
    if on_cuda(self):
        raise BufferError(f"zero points of int4 and shape {shape_of(self)} do not lie on bytes; give them as int8")
    return asarray(self.to_numpy().astype(np.int8))


cdef int parse_axis(axis) except? -1:
    """-1 or -2."""
    number = parse_integer(axis, "axis")
    if number not in (-1, -2):
        raise ValueError(f"axis={in_short(axis)}: blocks run along -1, the last axis, or -2, the others as one")
    return number
