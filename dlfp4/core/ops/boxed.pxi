# matmul as PyTorch's dispatcher calls it, by the C interface that boxed.h declares. A product that is known is found by
# the bytes that say all of its arguments but their memory, and is multiplied without a Python object for any of them.
# All other calls go to the kernel in Python.

cdef extern from "boxed.h" nogil:
    ctypedef void (*dlfp4_boxed_kernel)(uint64_t *, uint64_t, uint64_t)

    ctypedef struct dlfp4_stable:
        int (*aoti_torch_get_dim)(void **, int64_t *) noexcept nogil
        int (*aoti_torch_get_sizes)(void **, int64_t **) noexcept nogil
        int (*aoti_torch_get_strides)(void **, int64_t **) noexcept nogil
        int (*aoti_torch_get_dtype)(void **, int32_t *) noexcept nogil
        int (*aoti_torch_get_device_type)(void **, int32_t *) noexcept nogil
        int (*aoti_torch_get_device_index)(void **, int32_t *) noexcept nogil
        bint (*aoti_torch_grad_mode_is_enabled)() noexcept nogil
        int (*aoti_torch_empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t,
                                        void ***) noexcept nogil
        int (*aoti_torch_new_tensor_handle)(void **, void ***) noexcept nogil
        int (*aoti_torch_delete_tensor_object)(void **) noexcept nogil
        int (*torch_string_length)(void *, size_t *) noexcept nogil
        int (*torch_string_c_str)(void *, const char **) noexcept nogil
        int (*torch_delete_string)(void *) noexcept nogil
        int (*torch_list_size)(void *, size_t *) noexcept nogil
        int (*torch_list_get_item)(void *, size_t, uint64_t *) noexcept nogil
        int (*torch_delete_list)(void *) noexcept nogil
        int (*aoti_torch_library_init_impl)(const char *, const char *, const char *, uint32_t, void **) noexcept nogil
        int (*torch_library_impl)(void *, const char *, dlfp4_boxed_kernel, uint64_t) noexcept nogil
        int (*torch_delete_stable_ivalue)(uint64_t *) noexcept nogil

    int dlfp4_delete_value(uint64_t *) noexcept

    const uint64_t *dlfp4_keys_of_thread(void *) noexcept

cdef extern from "boxed.h":
    ctypedef enum dlfp4_stage:
        DLFP4_BELOW_AUTOGRAD
        DLFP4_AUTOGRAD

    dlfp4_boxed_kernel dlfp4_boxed(dlfp4_stage, int (*)(uint64_t *, dlfp4_stage) except -1) noexcept


cdef enum:
    STABLE_VERSION_MAJOR = 2   # of the interface that boxed.h declares
    STABLE_VERSION_MINOR = 11
    MOST_ARGUMENTS = 32
    MOST_SAID = 1024           # bytes that say a call

cdef dlfp4_stable STABLE
cdef Natives NATIVES           # of the same library


cdef class _Boxed:
    """The operation: kinds of its arguments, one letter each, and whom to call."""
    cdef bytes kinds           # (T)ensor, (S)tring, optional (t)ensor, (s)tring, (i)ntegers, (f)loat
    cdef object kernel         # in Python
    cdef object follow         # that for autograd in Python: the result, and whether the kernel was called at once
    cdef dict forward          # where Python keeps the level of forward derivatives
    cdef void *library         # which has the dispatch keys of threads
    cdef Py_ssize_t key_set    # bytes into what implements a tensor, where its dispatch keys lie
    cdef uint8_t (*requires_grad)(void *) noexcept
    cdef object wrap           # makes tensors of Python of capsules of handles, which it takes over
    cdef object is_idle        # whether products may be remembered
    cdef dict products         # those that the kernel in Python remembers: see _remember_product
    cdef dict known            # the same by the bytes that say a call

cdef _Boxed BOXED = None


def _prepare_boxed(functions, natives, kinds, kernel, wrap, is_idle, products, known):
    """Have kernels in C call `kernel` where they do not know a call. `functions` has the addresses of those that
    boxed.h declares, in this order."""
    global BOXED
    cdef uintptr_t *table = <uintptr_t *> &STABLE
    cdef int k
    for k, address in enumerate(functions):
        table[k] = address
    if STABLE.torch_delete_stable_ivalue == NULL:
        STABLE.torch_delete_stable_ivalue = dlfp4_delete_value
    fill_natives(&NATIVES, natives)
    BOXED = _Boxed()
    BOXED.kinds, BOXED.kernel, BOXED.wrap, BOXED.is_idle = kinds.encode(), kernel, wrap, is_idle
    BOXED.products, BOXED.known = products, known


def _follow_boxed(follow, forward, library, key_set, requires_grad):
    """The same of kernels for autograd; False where threads have no dispatch keys to be read."""
    BOXED.follow, BOXED.forward, BOXED.key_set = follow, forward, key_set
    BOXED.library = <void *> <uintptr_t> library
    BOXED.requires_grad = <uint8_t (*)(void *) noexcept> <uintptr_t> requires_grad
    return dlfp4_keys_of_thread(BOXED.library) != NULL


def _register_boxed(namespace, name, key, is_autograd):
    """Register a kernel in C of an operation that is defined, for good."""
    cdef bytes space = namespace.encode(), named = name.encode(), of_key = key.encode()
    cdef void *library = NULL
    cdef uint64_t version = (<uint64_t> STABLE_VERSION_MAJOR << 56) | (<uint64_t> STABLE_VERSION_MINOR << 48)
    cdef dlfp4_boxed_kernel boxed = dlfp4_boxed(DLFP4_AUTOGRAD if is_autograd else DLFP4_BELOW_AUTOGRAD, run_boxed)
    if (STABLE.aoti_torch_library_init_impl(space, of_key, b"dlfp4/core/ops/boxed.pxi", 0, &library)
            or STABLE.torch_library_impl(library, named, boxed, version)):
        raise RuntimeError(f"PyTorch refused a kernel for {namespace}::{name} and {key}")


cdef int run_boxed(uint64_t *stack, dlfp4_stage stage) except -1:
    """The result of a call in place of its first argument; the arguments belong to the kernel."""
    cdef void **made = NULL
    cdef bytes said = None
    try:
        if NATIVES.trace()[0] == NULL and not NATIVES.has_modes(False) and BOXED.is_idle():
            said = say_call(stack, stage)
        if said is not None:
            known = look_up(BOXED.known, said)
            if known is not None:
                made = (<_KnownCall> known).run(stack)
        if made == NULL:
            made = run_in_python(stack, stage, said)
    finally:
        free_arguments(stack)
    stack[0] = <uint64_t> made
    return 0


# ---- What a call says

cdef struct Said:
    char bytes[MOST_SAID]
    Py_ssize_t size


cdef bytes say_call(const uint64_t *stack, dlfp4_stage stage):
    """All of a call but the memory of its tensors; None where that is too long, or not to be had. For autograd that is
    also what decides what comes between it and a device, and whether it follows the call."""
    cdef Said said
    cdef const char *kinds = BOXED.kinds
    cdef uint64_t value
    cdef char has_value
    cdef int k = 0
    said.size = 0
    if not say(&said, &stage, sizeof(stage)) or (stage == DLFP4_AUTOGRAD and not say_thread(&said)):
        return None
    while kinds[k]:
        value = stack[k]
        if kinds[k] != b"T" and kinds[k] != b"S":
            has_value = value != 0
            if not say(&said, &has_value, 1):
                return None
            if has_value:
                value = (<uint64_t *> value)[0]
        else:
            has_value = True
        if has_value and not say_value(&said, kinds[k], value):
            return None
        if has_value and stage == DLFP4_AUTOGRAD and (kinds[k] == b"T" or kinds[k] == b"t"):
            if not say_keys(&said, (<void **> value)[0]):
                return None
        k += 1
    return said.bytes[:said.size]


cdef inline bint say(Said *self, const void *data, size_t size) noexcept:
    if size > <size_t> (MOST_SAID - self.size):
        return False
    memcpy(self.bytes + self.size, data, size)
    self.size += size
    return True


cdef bint say_value(Said *self, char kind, uint64_t value) noexcept:
    cdef const char *text = NULL
    cdef size_t size = 0, k
    cdef uint64_t item = 0
    if kind == b"T" or kind == b"t":
        return say_tensor(self, <void **> value)
    if kind == b"S" or kind == b"s":
        return (STABLE.torch_string_length(<void *> value, &size) == 0
                and STABLE.torch_string_c_str(<void *> value, &text) == 0
                and say(self, &size, sizeof(size)) and say(self, text, size))
    if kind == b"f":
        return say(self, &value, sizeof(value))
    if STABLE.torch_list_size(<void *> value, &size) or not say(self, &size, sizeof(size)):
        return False
    for k in range(size):
        if STABLE.torch_list_get_item(<void *> value, k, &item) or not say(self, &item, sizeof(item)):
            return False
    return True


cdef bint say_tensor(Said *self, void **tensor) noexcept:
    cdef int64_t ndim = 0
    cdef int64_t *shape = NULL
    cdef int64_t *strides = NULL
    cdef int32_t facts[3]
    return (STABLE.aoti_torch_get_dim(tensor, &ndim) == 0 and 0 <= ndim <= MOST_DIMS
            and STABLE.aoti_torch_get_sizes(tensor, &shape) == 0
            and STABLE.aoti_torch_get_strides(tensor, &strides) == 0
            and fill_facts(facts, tensor) and say(self, &ndim, sizeof(ndim)) and say(self, facts, sizeof(facts))
            and say(self, shape, ndim * sizeof(int64_t)) and say(self, strides, ndim * sizeof(int64_t)))


cdef bint say_thread(Said *self) except -1:
    """False within forward derivatives."""
    cdef const uint64_t *keys = dlfp4_keys_of_thread(BOXED.library)
    cdef bint has_grad = STABLE.aoti_torch_grad_mode_is_enabled()
    return (look_up(BOXED.forward, "_current_level") == -1 and keys != NULL
            and say(self, keys, 2 * sizeof(uint64_t)) and say(self, &has_grad, sizeof(has_grad)))


cdef bint say_keys(Said *self, void *impl) noexcept:
    cdef uint8_t requires_grad = BOXED.requires_grad(impl)
    return say(self, <char *> impl + BOXED.key_set, sizeof(uint64_t)) and say(self, &requires_grad, 1)


cdef bint fill_facts(int32_t *facts, void **tensor) noexcept:
    """The type of a tensor and its device, as PyTorch numbers them."""
    return (STABLE.aoti_torch_get_dtype(tensor, facts) == 0
            and STABLE.aoti_torch_get_device_type(tensor, facts + 1) == 0
            and STABLE.aoti_torch_get_device_index(tensor, facts + 2) == 0)


# ---- Known calls

@cython.final
cdef class _KnownCall:
    """A product whose operands lie as those of another: descriptions without memory."""
    cdef _Product product
    cdef Tensor x
    cdef ScaledTensor w
    cdef Tensor result
    cdef int32_t facts[3]   # of the result

    cdef void **run(self, const uint64_t *stack) except? NULL:
        """The handle of the result, or NULL where a tensor has no such memory."""
        cdef int64_t stream = current_stream_of(self.x.origin, self.x.dl.device) if on_cuda(self.x) else LEGACY_STREAM
        cdef Tensor x = placed(self.x, <void **> stack[0], stream)
        cdef Tensor data = placed(self.w.data, <void **> stack[1], stream)
        cdef Tensor scales = placed(self.w.scales, optional_handle(stack[2]), stream)
        cdef Tensor unit = None, y
        cdef ScaledTensor w
        cdef const DLTensor *dl = &self.result.dl
        cdef void **made = NULL
        cdef int status
        if self.w.global_scale is not None:
            unit = placed(self.w.global_scale, optional_handle(stack[3]), stream)
        if x is None or data is None or scales is None or (unit is None) != (self.w.global_scale is None):
            return NULL
        w = of_parts(self.w, data, scales, unit)
        if w is None:
            return NULL
        with nogil:   # of a device it may wait
            status = STABLE.aoti_torch_empty_strided(dl.ndim, dl.shape, dl.strides, self.facts[0], self.facts[1],
                                                     self.facts[2], &made)
        if status:
            return NULL
        try:
            y = placed(self.result, made, stream)
            self.product.multiply(x, w, y)
        except BaseException:
            STABLE.aoti_torch_delete_tensor_object(made)
            raise
        return made


cdef inline void **optional_handle(uint64_t value) noexcept:
    return (<void ***> value)[0] if value else NULL


cdef Tensor placed(Tensor known, void **tensor, int64_t stream):
    """The memory of a tensor that lies as another one; None where it has none, or starts between elements."""
    cdef void *data = NULL
    cdef int32_t dtype = 0
    cdef int64_t low, high
    cdef Tensor self
    if tensor == NULL or NATIVES.data(tensor, &data) or NATIVES.dtype(tensor, &dtype):
        return None
    self = hollow(known)
    self.dl.data = data
    self.stream, self.origin = stream, known.origin
    fill_byte_range(&self.dl, storage_bits(self), &low, &high)
    if starts_between(self) or not is_in_storage(&NATIVES, tensor, data, NATIVES.itemsize(dtype), low, high):
        return None
    return self


cdef int remember_call(bytes said, tuple args, result) except -1:
    """Know a call by what it says, where the kernel in Python has just remembered the product."""
    cdef _Product product
    cdef _KnownCall known
    cdef Tensor y
    x = args[0].detach()   # autograd has followed it by now, or does not
    for product in look_up(BOXED.products, key_of_product(args)) or ():
        known = _KnownCall.__new__(_KnownCall)
        known.product, known.x = product, part_like(product.a, x)
        known.w = None if known.x is None else _share_like(product.b, args[1], args[2], args[3])
        if known.w is None or not fill_facts(known.facts, handle_in(&NATIVES, result)):
            continue
        y = borrow(result)
        known.x, known.w, known.result = from_there(known.x), hollow_scaled(known.w), from_there(y)
        if len(BOXED.known) >= MOST_PRODUCTS:
            BOXED.known.clear()
        BOXED.known[said] = known
        return 0
    return 0


cdef Tensor from_there(Tensor self):
    """A description that keeps whose current stream operations follow."""
    cdef Tensor made = hollow(self)
    made.origin = self.origin
    return made


# ---- All other calls

cdef void **run_in_python(uint64_t *stack, dlfp4_stage stage, bytes said) except NULL:
    """The handle of what the kernel in Python returns, which is remembered where it can be."""
    cdef bint at_once = True
    cdef const char *kinds = BOXED.kinds
    cdef void **made = NULL
    cdef tuple args = tuple([as_argument(kinds[k], stack + k) for k in range(len(BOXED.kinds))])
    if stage == DLFP4_AUTOGRAD:
        result, at_once = BOXED.follow(*args)
    else:
        result = BOXED.kernel(*args)
    if said is not None and args[2] is not None and at_once:
        remember_call(said, args, result)
    if STABLE.aoti_torch_new_tensor_handle(handle_in(&NATIVES, result), &made):
        raise RuntimeError("PyTorch made no handle of a result")
    return made


cdef object as_argument(char kind, uint64_t *value):
    """An argument as a Python object, which takes a tensor's handle over."""
    cdef const char *text = NULL
    cdef size_t size = 0, k
    cdef uint64_t item = 0
    cdef void *handle
    cdef _Handle taken
    if kind != b"T" and kind != b"S":
        if value[0] == 0:
            return None
        value = <uint64_t *> value[0]
    handle = <void *> value[0]
    if kind == b"T" or kind == b"t":
        taken = _Handle.__new__(_Handle)
        taken.capsule = PyCapsule_New(handle, NULL, NULL)
        taken.value = value
        return BOXED.wrap(taken)[0]
    if kind == b"f":
        return (<double *> value)[0]
    if kind == b"S" or kind == b"s":
        if STABLE.torch_string_length(handle, &size) or STABLE.torch_string_c_str(handle, &text):
            raise RuntimeError("PyTorch's string has no text")
        return text[:size].decode()
    if STABLE.torch_list_size(handle, &size):
        raise RuntimeError("PyTorch's list has no size")
    items = []
    for k in range(size):
        if STABLE.torch_list_get_item(handle, k, &item):
            raise RuntimeError(f"PyTorch's list has no item {k}")
        items.append(<int64_t> item)
    return items


@cython.final
cdef class _Handle:
    """One capsule in a sequence for `wrap`, which a tensor's handle belongs to once it is read. Where memory runs out
    before, the handle is still an argument, which we delete."""
    cdef object capsule
    cdef uint64_t *value

    def __len__(self):
        return 1

    def __getitem__(self, k):   # PyTorch reads by this, or by the iterator
        self.value[0] = 0
        return self.capsule

    def __iter__(self):
        return self

    def __next__(self):
        if self.value[0] == 0:
            raise StopIteration
        return self[0]


cdef void free_arguments(uint64_t *stack) noexcept:
    cdef const char *kinds = BOXED.kinds
    cdef int k = 0
    while kinds[k]:
        if kinds[k] == b"T" or kinds[k] == b"S":
            free_value(kinds[k], stack[k])
        elif stack[k]:
            free_value(kinds[k], (<uint64_t *> stack[k])[0])
            STABLE.torch_delete_stable_ivalue(<uint64_t *> stack[k])
        k += 1


cdef void free_value(char kind, uint64_t value) noexcept:
    if kind == b"f" or value == 0:
        return
    if kind == b"T" or kind == b"t":
        STABLE.aoti_torch_delete_tensor_object(<void **> value)
    elif kind == b"i":
        STABLE.torch_delete_list(<void *> value)
    else:
        STABLE.torch_delete_string(<void *> value)
