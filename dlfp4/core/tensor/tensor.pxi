# Tensor: a description of memory that we or others own. The description never changes; views share the memory.

@cython.final
@cython.freelist(32)
@cython.no_gc
cdef class Tensor:
    """Memory of any library, described as DLPack does: elements, shape, strides, device.

    A Tensor comes from :func:`from_dlpack`, :func:`asarray`, :func:`empty` or an operation, and goes out through
    ``__dlpack__``, the C exchange API and the ``to_*`` methods. It counts logical elements: a packed FP4 tensor of
    shape (2, 8) has 8 bytes. Its description never changes. Slicing, ``T``, ``reshape`` and ``view`` share memory; they
    raise rather than copy. ``==`` is identity; to compare values, use :meth:`to_numpy` (NumPy
    compares them where the other operand is its array).
    """

    def __cinit__(self):
        # Without a description a Tensor is empty.
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
            # A failure is ignored: at exit the context may be gone, and its memory with it.
            dlfp4_cuda_free(self.dl.device.device_id, self.stream, self.owner, self.uses)
            Py_XDECREF(<PyObject *> self.retained)

    @property
    def shape(self):
        """Extents, in logical elements."""
        return shape_of(self)

    @property
    def strides(self):
        """The step from one index to the next along each dimension, in elements."""
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
        """Bytes of the elements when compact: ``ceil(size * bits / 8)``."""
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
        """True where several elements share a byte; False for padded sub-byte types and for wider types."""
        return is_packed(self)

    @property
    def readonly(self):
        """True where the producer forbids writing to the memory."""
        return self.flags & DLPACK_FLAG_BITMASK_READ_ONLY != 0

    @property
    def data_ptr(self):
        """Address of the first element; on devices with opaque handles, the handle."""
        return <uintptr_t> self.dl.data

    @property
    def T(self):
        """All dimensions in reverse order, without a copy."""
        return reverse_dims(self)

    @property
    def mT(self):
        """The last two dimensions exchanged, without a copy; ValueError below two dimensions."""
        if self.dl.ndim < 2:
            raise ValueError(f"mT needs two dimensions or more; this tensor has shape {shape_of(self)}")
        return exchange_dims(self, self.dl.ndim - 2, self.dl.ndim - 1)

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
        """The values, abbreviated as NumPy abbreviates them, where the host can read them; then what the tensor is."""
        return shown(self, self)

    def reshape(self, *shape):
        """The same elements under another shape, without a copy.

        Parameters
        ----------
        *shape : int, or tuple of int
            One extent may be -1, which is then computed.

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

        The extent of one dimension changes with the width: the last dimension of stride 1 that divides. uint8
        ``(..., n)`` becomes FP4 ``(..., 2n)`` or FP6 ``(..., 8n/6)``, and back. This is how raw bytes enter:
        ``asarray(x).view(dtype)``.

        Parameters
        ----------
        dtype : dtype-like
            An element type of NumPy, ml_dtypes, JAX or PyTorch, or its name.

        Raises
        ------
        ValueError
            The bytes do not divide into elements of `dtype`.
        TypeError
            `dtype` is not an element type that dlfp4 carries.
        """
        return reinterpret(self, row_of_argument(dtype))

    def x2(self, enable=True, /):
        """The same tensor, exported in pairs of 4-bit elements (lanes = 2) to every consumer; singly with False.

        PyTorch gets FP4 in pairs (``float4_e2m1fn_x2``) without this. The Tensor itself counts single elements either
        way: only ``__dlpack__`` and the C exchange API differ. Pairs run along the last dimension of stride 1.

        Raises
        ------
        ValueError
            The elements are not packed 4-bit ones, they do not divide into pairs, or the pairs would come back under
            another shape.
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

        A copy of pinned memory lies on ``"cpu"``, a copy of managed memory on its ``"cuda:N"``."""
        return keep_mark(self, duplicate(self))

    def to_device(self, device, /, *, stream=None):
        """The tensor on `device`: itself if it lies there, else a copy that is complete on return.

        Parameters
        ----------
        device : str, tuple or Device
            Such as ``"cpu"`` or ``"cuda:0"``.
        stream : None
            Accepted for the array API. The copy is ordered behind the stream on which the data was made.

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
        return self if lies_on(self, target) else keep_mark(self, move(self, target))

    def to_numpy(self, copy=None):
        """A NumPy array of the element type of NumPy or ml_dtypes.

        Host memory is shared. Packed elements are copied to a new array with one element a byte, high bits zero. Device
        memory is copied. A shared array is read-only where the tensor is, and where its memory belongs to an array that
        never changes (JAX, TensorFlow); a capsule cannot say the latter, so ``numpy.from_dlpack`` gives a writable one.

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
        """The same elements as an object of x's framework, on x's device: results go back to where inputs came from.

        Parameters
        ----------
        x : producer
            An object of a framework that dlfp4 knows, such as a ``torch.Tensor``, a NumPy or JAX array, or a Tensor.

        Returns
        -------
        object
            The result of the framework's ``to_*``, which shares the memory where framework and device allow it.

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
        """The only element as a Python scalar; ValueError for more elements, or none."""
        if self.size_ != 1:
            raise ValueError(f"item() needs one element; shape {shape_of(self)} has {self.size_}")
        return values_of(self).item()

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __sizeof__(self):
        """Bytes of the object and of the host memory that it owns; borrowed and device memory does not count."""
        cdef Py_ssize_t bytes = object.__sizeof__(self)
        if self.dl.shape != self.inline_dims:
            bytes += 2 * self.dl.ndim * (1 + self.x2_) * <Py_ssize_t> sizeof(int64_t)
        return bytes + (count_bytes(self) + ALIGNMENT if self.owner_kind == OWNER_HOST else 0)

    def __format__(self, spec):
        """With a specification, the only element of a tensor, such as the result of a dot."""
        return format(self.item(), spec) if spec else str(self)

    # ---- Copies of the object: see pickling.pxi

    def __reduce_ex__(self, protocol):
        return reduce_tensor(self, protocol)

    def __copy__(self):
        return self   # it never changes

    def __deepcopy__(self, memo):
        return with_dialect(duplicate(self), True) if self.x2_ else duplicate(self)   # exported as the original is

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
            The newest version that the consumer understands. With None or a version below (1, 0) it gets a legacy
            capsule; padded elements, which legacy capsules cannot express, leave in a versioned one with None.
        dl_device : tuple of int, optional
            The device on which the consumer wants the data: the tensor's own, or (1, 0) for the host.
        copy : bool, optional
            True copies and flags the copy, False never copies, None where `dl_device` needs it.

        Raises
        ------
        BufferError
            The data cannot be exported as asked; the message names the remedy.
        ValueError
            An argument has an invalid value.

        Notes
        -----
        dlfp4 frees its own CUDA memory in the order of the stream on which it was made. When a consumer drops the
        memory, it is also kept until the work that is queued on the current streams of PyTorch and CuPy has ended. JAX
        drops imports once it no longer reads them. For work on other streams, keep the tensor until that has ended.
        """
        if stream is None and dl_device is None and copy is None and not is_cuda(self.dl.device.device_type):
            return export_as_it_is(self, max_version)
        return export_as_asked(self, stream, max_version, dl_device, copy)
