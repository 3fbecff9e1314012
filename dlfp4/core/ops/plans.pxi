# Plans: the calls of operations inside compiled programs, complete but for the addresses (src/xla/plans.h). Tensors are
# described by TensorProtos, and checked and described to the kernels by the functions that serve eager calls.

cdef int start_plan(dlfp4_plan *plan, Py_ssize_t bytes, count, tuple steps) except -1:
    """An empty plan, for `count` tensors whose buffers are `steps` bytes apart."""
    cdef int number
    memset(plan, 0, bytes)
    plan.version, plan.bytes, plan.count = DLFP4_PLAN_VERSION, bytes, count
    for number, step in enumerate(steps):
        plan.steps[number] = step
    return 0


cdef void forget_addresses(dlfp4_blocks *blocks) noexcept:
    blocks.data = blocks.scales = blocks.offsets = NULL
    blocks.decodes = NULL


cdef int unit_of(ScaledTensor self) except -1:
    """What its global scale is of."""
    if self.global_scale is None:
        return DLFP4_UNIT_NONE
    return DLFP4_UNIT_LINES if lines_of_global_scale(self) else DLFP4_UNIT_TENSOR


# ---- Codecs

def _plan_convert(source, result, options, count, steps):
    """The plan of a cast, of packing or of unpacking between two plain TensorProtos; `options` are those of cast."""
    cdef dlfp4_convert_plan plan
    cdef Tensor given = outline_of(source), made = outline_of(result)
    start_plan(&plan.plan, sizeof(plan), count, steps)
    check_convertible(given, made.row)
    fill_cast(&plan.options, made.row, options["rounding"], options["saturate"], options["seed"])
    plan.size = given.size_
    fill_elements(&plan.source, given)
    fill_elements(&plan.result, made)
    return (<char *> &plan)[:sizeof(plan)]


cdef void fill_elements(dlfp4_plan_elements *elements, Tensor self) noexcept:
    elements.code = self.dl.dtype.code
    elements.bits = self.dl.dtype.bits
    elements.padded = is_padded(self)


# ---- Block scaling

def _check_axes(axes):
    """Refuse axes along which no blocks run."""
    check_axes(axes)


def _plan_quantize(source, results, options, given, count, steps):
    """The plan of quantizing a plain TensorProto to others, one for each axis, whose scales have the format's own type.
    `given` is the shape of what is given, the global scales or, by the option "measured", the largest magnitude."""
    cdef dlfp4_quantize_plan plan
    cdef _Rules rules = find_rules(options["format"], options["recipe"], options["rounding"])
    cdef ScaledTensor result
    cdef int direction
    cdef Tensor x = outline_of(source), units
    cdef bint measured = options.get("measured", False)
    if given is not None and not measured:
        units = outline_buffer(given, DTYPES[FLOAT32], False, HOST)
        has_tensor_scale(rules.number, True)   # refuses one where there is none
        find_granularity(rules, units, options["axes"], x)
        if scales_whole(rules.number):
            as_scalar(units, "global_scale")   # refuses several
    start_plan(&plan.plan, sizeof(plan), count, steps)
    fill_matrix(&plan.x, flatten(x, &ON_HOST))
    plan.x.data = NULL
    plan.format = rules.number
    plan.recipe = rules.recipe
    plan.recipe.seed = parse_seed(rules.recipe.rounding, options["seed"])
    plan.given = DLFP4_GIVEN_NOTHING if given is None else DLFP4_GIVEN_LARGEST if measured else DLFP4_GIVEN_SCALE
    plan.has_scale = has_tensor_scale(rules.number, None)
    plan.parts = 1
    for proto in results:
        result = outline_of(proto)
        check_rotated(result)
        direction = -1 - result.axis
        fill_blocks(&plan.blocks[direction], result, plan.recipe.zero_scale)
        forget_addresses(&plan.blocks[direction])
        plan.along[direction] = True
        plan.rotation = result.rotation
        plan.unit = <dlfp4_unit> unit_of(result)
        if plan.unit == DLFP4_UNIT_LINES:
            plan.units = result.global_scale.size_
            plan.has_scale = False
            if proto.global_scale_per == "matrix":
                fill_plan_parts(&plan, result)
    return (<char *> &plan)[:sizeof(plan)]


cdef int fill_plan_parts(dlfp4_quantize_plan *plan, ScaledTensor result) except -1:
    """Matrices of a stack as tensors of their own, as quantize_matrices has them."""
    cdef int64_t count = max(1, plan.units), rows = plan.x.rows // count
    if result.scale_layout_row != DLFP4_LAYOUT_linear:
        raise ValueError(f"scale_layout={result.scale_layout!r} with a global scale for each matrix: their tiles may "
                         f"be shared; quantize with scale_layout='linear'")
    plan.parts, plan.units = plan.units, 0
    plan.unit, plan.has_scale = DLFP4_UNIT_TENSOR, True
    plan.x.rows = rows
    plan.blocks[0].decode_lines = 1
    fill_matrix_steps(plan.part_steps, &plan.x, &plan.blocks[0], plan.format, rows)
    plan.part_elements = times(rows, plan.blocks[0].length)
    return 0


def _plan_dequantize(source, result, count, steps):
    """The plan of decoding a quantized TensorProto, whose scales have the format's own type, to a plain one."""
    cdef dlfp4_dequantize_plan plan
    cdef ScaledTensor given = outline_of(source)
    start_plan(&plan.plan, sizeof(plan), count, steps)
    fill_blocks(&plan.blocks, given, 0)
    forget_addresses(&plan.blocks)
    fill_lines(&plan.result, given, flatten(outline_of(result), &ON_HOST))
    plan.result.data = NULL
    plan.format = given.number
    plan.unit = <dlfp4_unit> unit_of(given)
    return (<char *> &plan)[:sizeof(plan)]


# ---- Products

def _plan_matmul(a, b, result, options, count, steps):
    """The plan of a matrix product of two TensorProtos on the host; b may be `turned`."""
    cdef dlfp4_matmul_plan plan
    cdef Factor of_a, of_b
    cdef object left = outline_of(a), right = _outline(b, options["turned"])
    start_plan(&plan.plan, sizeof(plan), count, steps)
    fill_product(&of_a, &of_b, &plan.result, left, right, outline_of(result))
    plan.result.data = NULL
    fill_plan_factor(&plan.factors[0], &of_a, left)
    fill_plan_factor(&plan.factors[1], &of_b, right)
    plan.length = of_a.length
    fill_product_options(&plan.options, options["alpha"], options["activation"] == "int8")
    return (<char *> &plan)[:sizeof(plan)]


def _plan_grouped(x, w, result, options, count, steps):
    """The plan of a product by experts of two TensorProtos: a quantized w as it is before its mT."""
    cdef dlfp4_grouped_plan plan
    cdef Factor of_x, of_w
    cdef object left = outline_of(x), right = outline_of(w)
    start_plan(&plan.plan, sizeof(plan), count, steps)
    fill_grouped(&of_x, &of_w, &plan.result, left, right, outline_of(result))
    plan.result.data = NULL
    fill_plan_factor(&plan.factors[0], &of_x, left)
    fill_plan_factor(&plan.factors[1], &of_w, right)
    plan.length = of_x.length
    fill_product_options(&plan.options, options["alpha"], options["activation"] == "int8")
    plan.rows, plan.experts, plan.step = options["rows"], of_w.shape[0], of_w.strides[0]
    plan.tokens = x.shape[0] if options["gathers"] else plan.result.rows
    plan.routing = DLFP4_ROUTING_GATHERS * options["gathers"] + DLFP4_ROUTING_ADDS * options["adds"]
    return (<char *> &plan)[:sizeof(plan)]


def _plan_vecdot(a, b, axis, count, steps):
    """The plan of sums of products along an axis of two TensorProtos."""
    cdef dlfp4_vecdot_plan plan
    cdef Factor of_a, of_b
    cdef object left = outline_of(a), right = outline_of(b)
    start_plan(&plan.plan, sizeof(plan), count, steps)
    fill_sums(&of_a, &of_b, left, right, axis)
    if not has_sums(&of_a, &of_b):
        refuse_sums(left, right)
    merge_axes(&of_a, &of_b)
    if of_a.ndim > DLFP4_PLAN_AXES:
        raise ValueError(f"lines of {of_a.ndim} axes: compiled sums take {DLFP4_PLAN_AXES} at most; reshape operands")
    fill_plan_factor(&plan.factors[0], &of_a, left)
    fill_plan_factor(&plan.factors[1], &of_b, right)
    plan.length, plan.ndim = of_a.length, of_a.ndim
    memcpy(plan.shape, of_a.shape, of_a.ndim * sizeof(int64_t))
    memcpy(plan.strides[0], of_a.strides, of_a.ndim * sizeof(int64_t))
    memcpy(plan.strides[1], of_b.strides, of_b.ndim * sizeof(int64_t))
    return (<char *> &plan)[:sizeof(plan)]


cdef int fill_plan_factor(dlfp4_plan_factor *factor, const Factor *filled, x) except -1:
    memset(factor, 0, sizeof(dlfp4_plan_factor))   # field by field: copies of structs may copy what is between fields
    factor.lines = filled.lines
    factor.unit = <dlfp4_unit> (unit_of(x) if type(x) is ScaledTensor else DLFP4_UNIT_NONE)
    factor.lines.decode = 1
    forget_addresses(&factor.lines.blocks)
    return 0
