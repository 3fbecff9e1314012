# Calls that repeat, as PyTorch's layers make them: what was checked once of a quantized operand is compared, and not
# found again.

cdef Tensor hollow(Tensor self):
    """The description of a tensor, without its memory."""
    cdef Tensor made
    if self is None:
        return None
    made = Tensor.__new__(Tensor)
    set_dtype(made, self.row, is_padded(self))
    made.dl.device = self.dl.device
    made.dl.data = <void *> <uintptr_t> NOWHERE
    reserve_dims(made, self.dl.ndim)
    memcpy(made.dl.shape, self.dl.shape, self.dl.ndim * sizeof(int64_t))
    memcpy(made.dl.strides, self.dl.strides, self.dl.ndim * sizeof(int64_t))
    made.size_ = self.size_
    return made


def _hollow_scaled(ScaledTensor self):
    """A quantized tensor's description, for _share_like."""
    return hollow_scaled(self)


cdef ScaledTensor hollow_scaled(ScaledTensor self):
    cdef ScaledTensor made = make_scaled(hollow(self.data), hollow(self.scales), hollow(self.global_scale), self.format,
                                         self.axis, self.scale_layout, self.shape, self.rotation, hollow(self.offsets))
    made.prepared = self.prepared
    made.turned = self.turned
    return made


def _share_like(ScaledTensor known, data, scales, global_scale):
    """A quantized tensor of parts that lie as those of another, which was checked; None where they do not."""
    cdef Tensor elements = part_like(known.data, data), stored = part_like(known.scales, scales)
    cdef Tensor unit = part_like(known.global_scale, global_scale)
    if (elements is None or stored is None or (unit is None) != (known.global_scale is None)
            or known.offsets is not None):
        return None
    return of_parts(known, elements, stored, unit)


cdef ScaledTensor of_parts(ScaledTensor known, Tensor elements, Tensor scales, Tensor unit):
    """A quantized tensor like another one, of other parts; None where those of prepared weights lie apart."""
    cdef ScaledTensor self = make_scaled(elements, scales, unit, known.format, known.axis, known.scale_layout,
                                         known.shape, known.rotation, None)
    self.prepared = known.prepared
    self.turned = known.turned
    return None if is_prepared(self) and not lies_in_one_piece(self) else self


cdef Tensor part_like(Tensor known, part):
    cdef Tensor self
    if known is None or part is None:
        return None
    self = borrow(part)
    if self.row == UINT8 and known.row != UINT8 and has_dense_lines(self):
        self = reinterpret(self, known.row)
    if (self.row != known.row or self.dl.ndim != known.dl.ndim or is_padded(self) != is_padded(known)
            or self.dl.device.device_type != known.dl.device.device_type
            or self.dl.device.device_id != known.dl.device.device_id
            or memcmp(self.dl.shape, known.dl.shape, self.dl.ndim * sizeof(int64_t))
            or memcmp(self.dl.strides, known.dl.strides, self.dl.ndim * sizeof(int64_t))
            or starts_between(self)):
        return None
    return self


cdef inline bint starts_between(Tensor self) noexcept:
    """Whether the first element does not start on a multiple of its size."""
    return <uintptr_t> self.dl.data & (max(1, storage_bits(self) // 8) - 1) != 0


@cython.final
cdef class _Product:
    """A product of a plain tensor and quantized weights that was done before, and will be again: which kernels
    multiply, and how a framework makes the result."""
    cdef Tensor a
    cdef ScaledTensor b
    cdef object make
    cdef tuple shape
    cdef dict options
    cdef double alpha
    cdef bint rounds
    cdef str tactic   # of the kernels for CUDA; None of those of the host

    def __init__(self, Tensor a, ScaledTensor b, make, shape, options, alpha, rounds, str tactic):
        self.a, self.b = hollow(a), hollow_scaled(b)
        self.make, self.shape, self.options = make, shape, options
        self.alpha, self.rounds, self.tactic = alpha, rounds, tactic

    cdef object run(self, a, b, scales, global_scale):
        """The result, or None where the operands lie in another way."""
        cdef Tensor x = part_like(self.a, a), y
        cdef ScaledTensor w = None if x is None else _share_like(self.b, b, scales, global_scale)
        if w is None:
            return None
        out = self.make(self.shape, **self.options)
        y = borrow(out)
        self.multiply(x, w, y)
        return out

    cdef int multiply(self, Tensor x, ScaledTensor w, Tensor y) except -1:
        if self.tactic is None:
            _multiply_on_host(x, w, y, self.alpha, self.rounds)
        else:
            _multiply_on_cuda(x, w, y, self.alpha, None, self.tactic, None)
        return 0


class _Exact(float):
    """A number as a constant: it equals one of the same bits alone, so that what is kept for 0.0 is not found by -0.0.
    """
    __slots__ = ()

    def __eq__(self, other):
        return isinstance(other, float) and self.hex() == other.hex()

    def __hash__(self):
        return hash(self.hex())


cdef object constant_of(value):
    """What is no tensor, as it is compared."""
    return tuple(value) if type(value) is list else _Exact(value) if type(value) is float else value


def _constant_of(value):
    """The same for dlfp4's Python files."""
    return constant_of(value)


cdef tuple key_of_product(tuple args):
    """By what products are found again: shapes, and what is no tensor."""
    constants = args[4:]
    if len(args) > 5:
        constants = tuple([constant_of(value) for value in constants])
    return args[0].shape, args[1].shape, constants


def _multiply_again(known, args):
    """The result of a product that is known for (a, b, scales, global scale, constants...), else None."""
    cdef list products
    if len(args) < 5 or args[2] is None:
        return None
    products = look_up(<dict> known, key_of_product(args))
    if products is None:
        return None
    for product in products:
        out = (<_Product> product).run(args[0], args[1], args[2], args[3])
        if out is not None:
            return out
    return None


def _remember_product(known, args, product):
    """Have _multiply_again know a product."""
    if len(known) >= MOST_PRODUCTS:
        known.clear()
    products = known.setdefault(key_of_product(args), [])
    if len(products) < MOST_LIKE_IT:
        products.append(product)


cdef enum:
    MOST_PRODUCTS = 4096
    MOST_LIKE_IT = 8   # of the same shapes and constants, in other types and strides
