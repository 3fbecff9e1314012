# A recipe as the kernels take it: its options by number, remembered since calls repeat.

@cython.final
cdef class _Rules:
    """A format, and a recipe for it as the kernels take it, without a seed."""
    cdef object format
    cdef int number
    cdef dlfp4_recipe recipe
    cdef str scale_dtype        # of the scales, where that is not the format's
    cdef str global_scale_per


cdef dict SCALE_RULES = {
    "floor": DLFP4_SCALE_FLOOR, "rceil": DLFP4_SCALE_RCEIL, "ceil": DLFP4_SCALE_CEIL, "even": DLFP4_SCALE_EVEN,
}
cdef dict SCALE_ORDERS = {
    "global_first": DLFP4_GLOBAL_FIRST, "block_first": DLFP4_BLOCK_FIRST, "input_type": DLFP4_INPUT_TYPE,
}
cdef dict FOUR_OVER_SIX = {
    None: DLFP4_NOT_FOUR_OVER_SIX, "mean_absolute": DLFP4_MEAN_ABSOLUTE, "mean_squared": DLFP4_MEAN_SQUARED,
}
cdef dict RULES = {}   # of each format's name, recipe and rounding that a call had
cdef int MOST_RULES = 1024


cdef _Rules find_rules(format, recipe, rounding):
    name = str.__str__(format) if isinstance(format, str) else _find_format(format).name
    key = (name, recipe, rounding)
    try:
        found = look_up(RULES, key)
    except TypeError:
        raise TypeError(f"recipe={recipe!r} and rounding={rounding!r}: expected names, or a dlfp4.Recipe") from None
    if found is None:
        format = _find_format(name)
        found = make_rules(format, find_recipe(format, recipe), rounding)
        if len(RULES) >= MOST_RULES:
            RULES.clear()
        RULES[key] = found
    return found


cdef _Rules make_rules(format, chosen, rounding):
    cdef _Rules self = _Rules()
    self.format = format
    self.number = format.number
    self.recipe.rounding = <dlfp4_rounding> parse_rounding(chosen.rounding if rounding is None else rounding)
    if chosen.four_over_six is not None and self.recipe.rounding == DLFP4_STOCHASTIC:
        raise ValueError("rounding='stochastic' with four_over_six: it compares errors that chance would change; take "
                         "another rounding")
    self.recipe.seed = 0
    self.recipe.scale_rule = <dlfp4_scale_rule> <int> SCALE_RULES[chosen.scale_rule or "floor"]
    self.recipe.scale_order = <dlfp4_scale_order> <int> SCALE_ORDERS[chosen.scale_order or "global_first"]
    self.recipe.four_over_six = <dlfp4_four_over_six> <int> FOUR_OVER_SIX[chosen.four_over_six]
    self.recipe.largest_scale = largest_scale_of(chosen)
    self.recipe.eps = chosen.eps
    self.recipe.divides = chosen.divide
    self.recipe.pow2 = pow2_of(format, chosen)
    self.recipe.zero_scale = chosen.zero_scale or 0
    self.recipe.least_scale = code_of_scale(format, chosen.scale_floor)
    self.recipe.drops_negative_zero = not chosen.keeps_negative_zero
    self.recipe.rounds_to_plus_zero = not chosen.rounds_to_negative_zero
    self.recipe.first = 0
    self.recipe.scale_code = self.recipe.scale_bits = 0
    self.global_scale_per = chosen.global_scale_per
    if scale_type(format, chosen.scale_dtype) != format.scale:
        self.scale_dtype = chosen.scale_dtype
        row = row_of_argument(self.scale_dtype)
        self.recipe.scale_code, self.recipe.scale_bits = dlfp4_dtypes[row].code, dlfp4_dtypes[row].bits
    return self
