# The random Hadamard transform of sixteen neighbours: its signs, and what it means for operands.

cdef int ROTATED_LENGTH = _ROTATED_LENGTH


cdef uint32_t parse_hadamard(hadamard) except? 1:
    """The rotation of 16 signs or of a seed; 0 of None."""
    cdef uint32_t rotation = DLFP4_ROTATED
    if hadamard is None:
        return 0
    if isinstance(hadamard, (int, np.integer)) and not isinstance(hadamard, (bool, np.bool_)):
        if not 0 <= hadamard < 1 << 64:
            raise ValueError(f"hadamard={in_short(hadamard)}: a seed is an integer from 0, below 2**64")
        return dlfp4_rotation(hadamard)
    try:
        signs = [PyNumber_Index(sign) for sign in hadamard]
    except TypeError:
        signs = []
    if len(signs) != ROTATED_LENGTH or not set(signs) <= {-1, 1}:
        raise ValueError(f"hadamard={in_short(hadamard)}: expected a seed, or {ROTATED_LENGTH} signs, each 1 or -1")
    for number, sign in enumerate(signs):
        if sign < 0:
            rotation |= <uint32_t> 1 << <int> number
    return rotation


cdef object signs_of(uint32_t rotation):
    """The signs of a rotation; None where there is none."""
    if rotation == 0:
        return None
    return tuple([-1 if rotation >> number & 1 else 1 for number in range(ROTATED_LENGTH)])


def _parse_hadamard(hadamard):
    """The signs that an argument stands for."""
    return signs_of(parse_hadamard(hadamard))


def _with_hadamard(ScaledTensor self, hadamard):
    """The same codes and scales as those of a tensor with other signs, or with none."""
    cdef ScaledTensor source = plain(self), result
    cdef uint32_t rotation = parse_hadamard(hadamard)
    if rotation == source.rotation:
        return source
    result = another(source)
    result.rotation, result.receipt = rotation, source.receipt
    check_rotated(result)
    return result


def _refuse_hadamard(ScaledTensor self, who):
    """ValueError where a tensor was transformed, which `who` cannot say."""
    if self.rotation:
        raise ValueError(f"{summary_of(self)} stands for values before a Hadamard transform, which {who} does not "
                         f"know; quantize the values themselves")


cdef int check_rotated(ScaledTensor self) except -1:
    """Whether lines divide into sixteens."""
    cdef int64_t length
    if self.rotation == 0:
        return 0
    length = self.data.dl.shape[not lies_across(self)]
    if length % ROTATED_LENGTH:
        raise ValueError(f"lines of {length} elements: the Hadamard transform takes {ROTATED_LENGTH} at a time; "
                         f"complete the tensor with zeros, or leave hadamard out")
    return 0


cdef object quantize_each(tuple axes, x, format, out, dict options):
    """Along each axis by itself: what is transformed, and so its largest magnitude, differs."""
    cdef tuple results = out if type(out) is tuple else (out,) * len(axes)
    if len(results) != len(axes):
        raise ValueError(f"out has {len(results)} ScaledTensors for {len(axes)} axes")
    return tuple([quantize(x, format, axis=axis, out=result, **options) for axis, result in zip(axes, results)])


def _with_equal_rotations(a, b, stream=None):
    """The operands of a product, (..., K) and (K, N) or a stack (experts, N, K), as ones whose products are those of
    their values.
    """
    return with_equal_rotations(a, b, (-1, -2 if len(b.shape) == 2 else -1), stream)


cdef tuple with_equal_rotations(a, b, tuple axes, stream):
    """Two operands whose products, summed along an axis of each (None: that along which its blocks run), are those of
    their values. Transforms alike cancel each other in sums along both, so that codes may stand for themselves; others
    are undone.
    """
    if rotation_of(a) == 0 and rotation_of(b) == 0:
        return a, b
    if rotation_of(a) != rotation_of(b) or not cancels(a, axes[0]) or not cancels(b, axes[1]):
        return without_rotation(a, stream), without_rotation(b, stream)
    return forget_rotation(a), forget_rotation(b)


cdef bint cancels(ScaledTensor self, axis) except -1:
    """Whether sums along an axis are over whole groups of the transform. A line that is completed with zeros ends
    within one, whose other elements belong to no sum.
    """
    return (axis is None or self.axis == axis) and as_lines(self.shape, self.axis)[1] % ROTATED_LENGTH == 0


cdef inline uint32_t rotation_of(x):
    return (<ScaledTensor> x).rotation if type(x) is ScaledTensor else 0


cdef ScaledTensor forget_rotation(ScaledTensor self):
    cdef ScaledTensor result = another(self)
    result.rotation = 0
    return result


cdef object without_rotation(x, stream):
    return x if rotation_of(x) == 0 else dequantize(x, stream=stream)
