# Tensor: a description of memory that something else owns, or that we do. It never changes; views share the memory.

@cython.final
@cython.freelist(32)
@cython.no_gc
cdef class Tensor:
    """Memory of any library, described as DLPack does: elements, shape, strides, device.

    A Tensor comes from :func:`from_dlpack`, :func:`asarray`, :func:`empty` or an operation, and goes out through
    ``__dlpack__``, the C exchange API and the ``to_*`` methods. It counts logical elements: a packed FP4 tensor of
    shape (2, 8) is 8 bytes. Its description never changes; slicing, ``T``, ``reshape`` and ``view`` share memory, and
    raise rather than copy. ``==`` is identity: values are compared as NumPy's, with :meth:`to_numpy`.
    """

    def __cinit__(self):
        # A Tensor that nobody described is an empty one.
        self.dl.ndim = 1
        self.dl.device.device_type = kDLCPU
        self.dl.shape = self.inline_dims
        self.dl.strides = self.inline_dims + 1
        self.dl.dtype.code = dlfp4_dtypes[0].code
        self.dl.dtype.bits = dlfp4_dtypes[0].bits
        self.dl.dtype.lanes = 1

    def __init__(self, *args, **options):
        raise TypeError("a Tensor is made by dlfp4.from_dlpack, dlfp4.asarray or dlfp4.empty")

    def __dealloc__(self):
        if self.dl.shape != self.inline_dims:
            PyMem_RawFree(self.dl.shape)
        if self.owner_kind == OWNER_OBJECT or self.owner_kind == OWNER_LOAN:
            Py_XDECREF(<PyObject *> self.retained)
            Py_DECREF(<object> self.owner)
        elif self.owner_kind == OWNER_VERSIONED:
            delete_versioned(<DLManagedTensorVersioned *> self.owner)
        elif self.owner_kind == OWNER_LEGACY:
            delete_legacy(<DLManagedTensor *> self.owner)
        elif self.owner_kind == OWNER_HOST:
            PyMem_RawFree(self.owner)
        elif self.owner_kind == OWNER_CUDA:
            # Nothing to report a failure to: the context may be gone at exit, and its memory with it.
            dlfp4_cuda_free(self.dl.device.device_id, self.stream, self.owner, self.uses)
            Py_XDECREF(<PyObject *> self.retained)

    @property
    def shape(self):
        """Extents, in logical elements."""
        return shape_of(self)

    @property
    def strides(self):
        """Steps between neighbours of each dimension, in elements."""
        return strides_of(self)

    @property
    def ndim(self):
        """Number of dimensions."""
        return self.dl.ndim

    @property
    def size(self):
        """Number of elements."""
        return self.size_

    @property
    def nbytes(self):
        """Bytes that the elements take when compact: ``ceil(size * bits / 8)``."""
        return count_bytes(self)

    @property
    def dtype(self):
        """The ``numpy.dtype``, of NumPy or of ml_dtypes."""
        return DTYPES[self.row]

    @property
    def device(self):
        """The :class:`Device` on which the memory lies."""
        return device_of(self)

    @property
    def packed(self):
        """True where several elements share a byte; False for padded sub-byte types and all wider ones."""
        return is_packed(self)

    @property
    def readonly(self):
        """True where the producer says that the memory must not be written."""
        return self.flags & DLPACK_FLAG_BITMASK_READ_ONLY != 0

    @property
    def data_ptr(self):
        """Address of the first element; on devices with opaque handles, the handle."""
        return <uintptr_t> self.dl.data

    @property
    def T(self):
        """All dimensions in reverse order, without a copy."""
        return permute(self, False)

    @property
    def mT(self):
        """The last two dimensions exchanged, without a copy; ValueError below two dimensions."""
        if self.dl.ndim < 2:
            raise ValueError(f"mT needs two dimensions or more; this tensor has shape {shape_of(self)}")
        return permute(self, True)

    def __len__(self):
        if self.dl.ndim == 0:
            raise TypeError("len() of a 0-d Tensor")
        return self.dl.shape[0]

    def __getitem__(self, key):
        return slice_tensor(self, key)

    def __iter__(self):
        return map(self.__getitem__, range(len(self)))

    def __contains__(self, value):
        raise TypeError("a Tensor does not compare its elements; ask .to_numpy()")

    def __bool__(self):
        raise TypeError("a Tensor has no truth value; compare its elements with .to_numpy(), or ask for its .size")

    def __repr__(self):
        """The values as NumPy abbreviates them, where the host reads the memory, and what the tensor is."""
        return shown(self, self.dl.device)

    def reshape(self, *shape):
        """The same elements under another shape, without a copy.

        Parameters
        ----------
        *shape : int, or tuple of int
            One extent may be -1: it is computed.

        Raises
        ------
        BufferError
            The strides do not allow it; call ``.copy().reshape(shape)``.
        ValueError
            The number of elements differs.
        """
        if not shape:
            raise TypeError("reshape() needs extents, or a tuple of them: () for one element without dimensions")
        return reshape_tensor(self, shape[0] if len(shape) == 1 else shape)

    def view(self, dtype):
        """The same bytes as elements of another type, without a copy.

        Along the dimension of stride 1, of several the last that divides, the extent changes with the width: uint8
        ``(..., n)`` becomes FP4 ``(..., 2n)`` or FP6 ``(..., 8n/6)``, and back. Raw bytes enter this way:
        ``asarray(x).view(dtype)``.

        Parameters
        ----------
        dtype : dtype-like
            Any type with the element type's name: ``numpy.dtype``, ml_dtypes, JAX, PyTorch, or a string.

        Raises
        ------
        ValueError
            The bytes do not divide into elements of `dtype`.
        TypeError
            `dtype` is not an element type that dlfp4 carries.
        """
        return reinterpret(self, row_of_argument(dtype))

    def x2(self, enable=True, /):
        """The same tensor, handed out in pairs of 4-bit elements (lanes = 2) to whoever asks; singly with False.

        PyTorch gets FP4 in pairs (``float4_e2m1fn_x2``) without this. The Tensor itself counts single elements either
        way; only ``__dlpack__`` and the C exchange API differ. Pairs run along the last dimension of stride 1.

        Raises
        ------
        ValueError
            The elements are not packed 4-bit ones, do not divide into pairs, or would come back under another shape.
        """
        cdef Tensor result = with_dialect(self, parse_flag(enable, "enable"))
        if result.x2_ and result.pairs == NULL:
            reason, remedy = why_no_pairs(self) if holds_pairs(self) else (
                f"it is {dtype_name(self)} with {storage_bits(self)} bits an element", "pack 4-bit elements first")
            raise ValueError(f"this tensor of shape {shape_of(self)} cannot be counted in pairs of 4-bit elements: "
                             f"{reason}; {remedy}")
        return result

    def copy(self):
        """A compact copy on the same device, aligned to 64 bytes on the host, and writable.

        Of pinned memory it is on ``"cpu"``, of managed memory on its ``"cuda:N"``."""
        return duplicate(self)

    def to_device(self, device, /, *, stream=None):
        """The tensor on `device`: itself if it lies there, else a copy, complete on return.

        Parameters
        ----------
        device : str, tuple or Device
            Such as ``"cpu"`` or ``"cuda:0"``.
        stream : None
            For the array API; the copy follows the stream on which the data was made.

        Raises
        ------
        BufferError
            dlfp4 cannot reach one of the two devices.
        DriverError
            The CUDA driver failed.
        """
        target = parse_device(device)
        if stream is not None:
            raise ValueError(f"stream={stream!r}: to_device waits for the copy, so it takes no stream; pass None")
        return self if lies_on(self, target) else move(self, target)

    def to_numpy(self, copy=None):
        """A NumPy array of the element type of NumPy or ml_dtypes.

        Host memory is shared, except packed elements: those become a fresh array with one element a byte, high bits
        zero. Device memory is copied. What is shared is read-only where the tensor is, or where its memory is an
        array's that never changes (JAX, TensorFlow); ``numpy.from_dlpack`` is not told the latter.

        Parameters
        ----------
        copy : bool, optional
            True always copies, False never does, None where it must.

        Raises
        ------
        BufferError
            ``copy=False``, and a copy is needed; or NumPy has no such array.
        """
        check_copy(copy)
        return as_numpy(on_host(self, copy))

    def __array__(self, dtype=None, copy=None):
        cdef object own = DTYPES[self.row]
        check_copy(copy)
        if dtype is not None and own != dtype:
            if copy is False:
                raise ValueError(f"{own} to {np.dtype(dtype)} needs a copy, which copy=False forbids")
            return values_of(self).astype(dtype)
        try:
            return as_numpy(on_host(self, copy))
        except BufferError as error:
            if copy is False:   # where NumPy's protocol wants a ValueError
                raise ValueError(str(error)) from None
            raise

    def to_torch(self, copy=None):
        """A ``torch.Tensor``; see :func:`dlfp4.frameworks.torch.from_tensor`."""
        check_copy(copy)
        return frameworks.load("torch").from_tensor(self, copy)

    def to_jax(self, copy=None):
        """A ``jax.Array``; see :func:`dlfp4.frameworks.jax.from_tensor`."""
        check_copy(copy)
        return frameworks.load("jax").from_tensor(self, copy)

    def to_cupy(self, copy=None):
        """A ``cupy.ndarray``; see :func:`dlfp4.frameworks.cupy.from_tensor`."""
        check_copy(copy)
        return frameworks.load("cupy").from_tensor(self, copy)

    def to_like(self, x, /):
        """An object of x's framework, on x's device, with these elements: what gives back what came in.

        Parameters
        ----------
        x : producer
            An object of a framework that dlfp4 knows, such as a ``torch.Tensor``, a NumPy or JAX array, or a Tensor.

        Returns
        -------
        object
            What the framework's ``to_*`` gives: the memory is shared where the framework and the device allow it.

        Raises
        ------
        TypeError
            `x` belongs to no framework that dlfp4 knows.
        BufferError
            The framework cannot take the tensor (:class:`RefusedError`), or dlfp4 cannot reach its device.

        Examples
        --------
        >>> import numpy as np, dlfp4
        >>> x = np.linspace(-6, 6, 4, dtype="float32")
        >>> dlfp4.cast(x, "bfloat16").to_like(x)
        array([-6, -2, 2, 6], dtype=bfloat16)
        """
        return as_native_like(self, x)

    def tolist(self):
        """The elements as nested lists of Python scalars."""
        return values_of(self).tolist()

    def item(self):
        """The one element as a Python scalar; ValueError where there are more, or none."""
        if self.size_ != 1:
            raise ValueError(f"item() needs one element; shape {shape_of(self)} has {self.size_}")
        return values_of(self).item()

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __sizeof__(self):
        """Bytes of the object, and of the host memory that it owns: not of what it borrows, nor of a device's."""
        cdef Py_ssize_t bytes = object.__sizeof__(self)
        if self.dl.shape != self.inline_dims:
            bytes += 2 * self.dl.ndim * (1 + self.x2_) * <Py_ssize_t> sizeof(int64_t)
        return bytes + (count_bytes(self) + ALIGNMENT if self.owner_kind == OWNER_HOST else 0)

    def __format__(self, spec):
        """By a specification the element of a tensor that has one, such as the result of a dot."""
        return format(self.item(), spec) if spec else str(self)

    # ---- Copies of the object: see pickling.pxi

    def __reduce_ex__(self, protocol):
        return reduce_tensor(self, protocol)

    def __copy__(self):
        return self   # it never changes

    def __deepcopy__(self, memo):
        return duplicate(self)

    # ---- Exporter: see exporter.pxi

    __dlpack_c_exchange_api__ = make_exchange_capsule()

    def __dlpack_device__(self):
        """DLPack's (device type, device id)."""
        return self.dl.device.device_type, self.dl.device.device_id

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A DLPack capsule of this tensor.

        Parameters
        ----------
        stream : int, optional
            The consumer's stream. CUDA: None or 1 the legacy default, 2 the per-thread default, a handle, or -1 for
            no synchronisation. Host memory: None.
        max_version : tuple of int, optional
            The newest version the consumer understands. Default, or below (1, 0): a legacy capsule, but a versioned one
            of padded elements, which a legacy one cannot say.
        dl_device : tuple of int, optional
            Where the consumer wants the data: the tensor's own device, or (1, 0) for the host.
        copy : bool, optional
            True copies and flags the copy, False never copies, None where `dl_device` needs it.

        Raises
        ------
        BufferError
            The data cannot go out as asked; the message says what to do.
        ValueError
            An argument has a value that means nothing.

        Notes
        -----
        CUDA memory of dlfp4's own is freed in the order of the stream on which it was made, and after the work that
        PyTorch's and CuPy's current streams hold when a consumer drops it. JAX drops what it no longer reads. Where
        work is under way on other streams, keep the tensor until it has ended.
        """
        if stream is None and dl_device is None and copy is None and not is_cuda(self.dl.device.device_type):
            return export_as_it_is(self, max_version)
        return export_as_asked(self, stream, max_version, dl_device, copy)
