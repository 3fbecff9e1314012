"""What of a model is quantized, and why the rest is kept: by names, element types and shapes alone."""

import numpy as np
import pytest

import dlfp4
from dlfp4 import checkpoints
from dlfp4.checkpoints import quantize_model
from dlfp4.checkpoints.selection import choose, largest_magnitude, quantize_chosen, shared_global_scale
from dlfp4.spellings import SPELLINGS

B = "bfloat16"
MATRIX = (B, (64, 512))

# Layers that are already quantized, by the convention of their names; two are of no convention.
QUANTIZED = {
    "compressed-tensors": {"weight_packed": ("int32", (64, 64)), "weight_scale": (B, (64, 32)),
                           "weight_zero_point": ("int32", (8, 32)), "weight_shape": ("int64", (2,)),
                           "weight_global_scale": ("float32", (1,)), "input_global_scale": ("float32", (1,))},
    "fp8 by channel": {"weight": ("float8_e4m3fn", (64, 512)), "weight_scale": (B, (64, 1))},
    "gptq": {"qweight": ("int32", (64, 64)), "qzeros": ("int32", (16, 8)), "scales": ("float16", (16, 64)),
             "g_idx": ("int32", (512,)), "bias": ("float16", (64,))},
    "awq": {"qweight": ("int32", (512, 8)), "qzeros": ("int32", (16, 8)), "scales": ("float16", (16, 64))},
    "mlx": {"weight": ("uint32", (64, 64)), "scales": (B, (64, 32)), "biases": (B, (64, 32))},
    "modelopt w4a8": {"weight": ("uint8", (64, 256)), "weight_scale": ("float32", (64, 32)),
                      "weight_scale_2": ("float32", ()), "input_scale": ("float32", ()),
                      "pre_quant_scale": (B, (1, 512))},
    "deepseek": {"weight": ("float8_e4m3fn", (64, 512)), "weight_scale_inv": ("float32", (64, 32))},
    "deepseek-v4": {"weight": ("int8", (64, 256)), "scale": ("float8_e8m0fnu", (64, 16))},
    "stable diffusion": {"weight": ("float8_e4m3fn", (64, 512)), "scale_weight": ("float32", (1, 32))},
    "bitsandbytes": {"weight": ("uint8", (16384, 1)), "weight.absmax": ("float32", (16, 32)),
                     "weight.quant_map": ("float32", (16,)), "weight.nested_absmax": ("float32", (4, 32))},
    "llm.int8": {"weight": ("int8", (64, 512)), "SCB": ("float32", (64, 32))},
    "hqq": {"W_q": ("uint8", (64, 256)), "scale": (B, (512, 32)), "zero": (B, (512, 32)), "meta": (B, (2, 32))},
    "quanto": {"weight._data": ("int8", (64, 512)), "weight._scale": (B, (64, 32))},
    "vptq": {"indices": ("int32", (64, 64)), "centroids.weight": ("float16", (64, 32))},
    "aqlm": {"codes": ("int8", (64, 64, 2)), "codebooks": ("float16", (64, 32)), "scales": ("float16", (64, 32))},
    "torchao": {"_weight_qdata": ("uint8", (64, 256)), "_weight_scale": ("float8_e4m3fn", (64, 32))},
    "codes and steps": {"codes": ("int8", (64, 512)), "steps": (B, (64, 32))},
    "minima": {"w": ("uint8", (64, 512)), "mins": (B, (64, 32)), "maxs": (B, (64, 32))},
    "scales alone": {"weight_scale": (B, (64, 32))},
    "inverse scales alone": {"weight_scale_inv": ("float32", (256, 64))},
    "floats with scales": {"weight": (B, (64, 512)), "weight_scale": (B, (64, 32))},
    "bitsandbytes viewed as bfloat16": {"weight": (B, (8192, 1)), "weight.absmax": ("float32", (512,))},
    "HQQ viewed as float16": {"W_q": ("float16", (64, 128)), "scale": ("float16", (512, 1))},
    "floats smoothed": {"weight": (B, (64, 512)), "pre_quant_scale": ("float32", (512,))},
}  # fmt: skip


def kept(shapes, format="mxfp4", **options):
    return {choice.name: choice.reason for choice in choose(shapes, format, **options).values() if not choice.quantized}


@pytest.mark.parametrize("include", [(), ("layers",)])
@pytest.mark.parametrize("format", ["nvfp4", "mxfp4", "fp8_e4m3", "mxfp8_e4m3", "fp8_128x128"])
@pytest.mark.parametrize("convention", QUANTIZED)
def test_what_is_quantized_is_kept(convention, format, include):
    layer = {f"model.layers.0.up_proj.{name}": described for name, described in QUANTIZED[convention].items()}
    other = {"model.layers.1.up_proj.weight": MATRIX}
    reasons = kept(layer | other, format, include=include)
    assert reasons.keys() == layer.keys()
    assert all(reasons.values())


def test_a_part_whose_weight_lies_in_another_file_is_known_with_both():
    assert "w.steps.weight" in kept({"w.codes": ("int8", (64, 512)), "w.steps.weight": (B, (64, 32))})


def test_scales_of_activations_and_of_the_cache_do_not_make_a_weight_quantized():
    layer = {"k_proj.weight": MATRIX, "k_proj.k_scale": ("float32", (1,)), "k_proj.input_scale": ("float32", ())}
    assert "k_proj.weight" not in kept(layer)


def test_one_projection_of_a_stack_may_be_quantized_and_the_other_not():
    experts = {
        "mlp.experts.gate_up_proj_blocks": ("uint8", (4, 128, 2, 16)),
        "mlp.experts.gate_up_proj_scales": ("uint8", (4, 128, 2)),
        "mlp.experts.gate_up_proj_bias": (B, (4, 128)),
        "mlp.experts.down_proj": (B, (4, 64, 64)),
        "mlp.experts.down_proj_bias": (B, (4, 64)),
    }
    assert experts.keys() - kept(experts).keys() == {"mlp.experts.down_proj"}


@pytest.mark.parametrize(
    ("name", "shape", "reason"),
    [
        ("model.embed_tokens.weight", (1000, 64), "embedding; include_embeddings"),
        ("transformer.wte.weight", (1000, 64), "embedding; include_embeddings"),
        ("tok_embeddings.weight", (1000, 64), "embedding; include_embeddings"),
        ("shared.weight", (1000, 64), "embedding; include_embeddings"),
        ("lm_head.weight", (1000, 64), "output head; include_heads"),
        ("output.weight", (1000, 64), "output head; include_heads"),
        ("embed_out.weight", (1000, 64), "output head; include_heads"),
        ("score.weight", (2, 64), "output head; include_heads"),
        ("cls.predictions.transform.dense.weight", (64, 64), "output head; include_heads"),
        ("lm_head.dense.weight", (64, 64), "output head; include_heads"),
        ("model.layers.0.mlp.gate.weight", (8, 64), "router of experts; include_routers"),
        ("model.layers.0.mlp.router.weight", (8, 64), "router of experts; include_routers"),
        ("model.layers.0.block_sparse_moe.gate.weight", (8, 64), "router of experts; include_routers"),
        ("model.layers.0.mlp.shared_expert_gate.weight", (1, 64), "router of experts; include_routers"),
        ("blk.0.ffn_gate_inp.weight", (8, 64), "router of experts; include_routers"),
        ("model.layers.0.input_layernorm.weight", (4, 64), "norm"),
        ("h.0.ln_1.weight", (4, 64), "norm"),
        ("layers.0.mlp.up_proj.bias", (4, 64), "bias"),
        ("layers.0.experts.gate_up_proj_bias", (8, 64), "bias"),
        ("wpe.weight", (512, 64), "positional table"),
        ("vision.pos_embed", (1, 256, 64), "positional table"),
        ("block.0.relative_attention_bias.weight", (32, 64), "positional table"),
        ("conv1.weight", (64, 3, 64), "convolution"),
        ("patches.weight", (64, 3, 16, 64), "4 dimensions: not a matrix"),
        ("stack.weight", (3, 64, 64), "3 dimensions, and not called experts"),
        ("layers.0.mixer.A_log", (128, 64), "not called a weight"),
        ("layers.0.up_proj.weight", (64, 50), "50 elements along axis -1 do not divide into blocks of mxfp4"),
        ("layers.0.up_proj.lora_A.weight", (8, 64), "adapter"),
        ("unet.mid_block.attentions.0.attn1.processor.to_q_lora.down.weight", (16, 64), "adapter"),
        ("audio_tower.audio_bos_eos_token.weight", (2, 64), "token"),
        ("mask_decoder.mask_tokens.weight", (4, 64), "token"),
        ("no_object_pointer", (1, 64), "token"),
        ("model.layers.61.eh_proj.weight", (64, 128), "projection that engines do not quantize"),
        ("query_feat.weight", (300, 64), "embedding; include_embeddings"),
        ("transformer_module.queries_features.weight", (100, 64), "embedding; include_embeddings"),
        ("transformer.w.weight", (1000, 64), "embedding; include_embeddings"),
        ("model.diffusion_model.img_in.weight", (3072, 64), "embedding; include_embeddings"),
        ("final_layer.linear.weight", (64, 64), "output head; include_heads"),
        ("layers.0.self_attn.k_proj.sconv.static_weight", (4, 64), "convolution"),
        ("layers.0.conv.in_proj.weight", (64, 64), "convolution"),
        ("convs.0.weight", (64, 64), "convolution"),
        ("layers.0.norm1.linear.weight", (64, 64), "norm"),
        ("double_blocks.0.img_mod.lin.weight", (384, 64), "modulation by an embedding; include_embeddings"),
        ("single_blocks.0.modulation.lin.weight", (192, 64), "modulation by an embedding; include_embeddings"),
        ("double_stream_modulation_txt.linear.weight", (384, 64), "modulation by an embedding; include_embeddings"),
        ("layers.0.adaLN_modulation.0.weight", (256, 64), "modulation by an embedding; include_embeddings"),
        ("adaln_single.linear.weight", (384, 64), "modulation by an embedding; include_embeddings"),
        ("time_projection.1.weight", (384, 64), "modulation by an embedding; include_embeddings"),
    ],
)
def test_what_is_no_linear_layer_is_kept(name, shape, reason):
    shapes = {name: (B, shape), "layers.9.down_proj.weight": MATRIX}
    reasons = kept(shapes)
    assert reasons.keys() == {name}
    assert reasons[name].startswith(reason)


def test_models_that_are_called_as_layers_are():
    names = (
        "convbert.encoder.layer.0",
        "roberta_prelayernorm.encoder.layer.0",
        "conv_encoder.model.swin.layers.0.blocks.1",
    )
    assert not kept({f"{name}.attention.self.query.weight": MATRIX for name in names})


def test_matrices_that_are_stored_as_in_and_out():
    shapes = {
        "dense.kernel": (B, (64, 96)),
        "multi_modal_projector.mm_input_projection_weight": (B, (64, 96)),
        "prompts_visual_projection": (B, (64, 96)),
        "blocks.0.ffn.experts.mlp.w1": (B, (128, 64)),
        "blocks.0.ffn.experts.mlp.v1": (B, (128, 64)),
        "blocks.0.ffn.experts.mlp.w2": (B, (128, 64)),
    }
    axes = {name: choice.axis for name, choice in choose(shapes, "mxfp4").items() if choice.quantized}
    assert axes == {name: -1 if name.endswith("1") else -2 for name in shapes}


def test_flags_take_them():
    shapes = {"embed.weight": MATRIX, "lm_head.weight": MATRIX, "mlp.gate.weight": MATRIX}
    for flag, name in (
        ("include_embeddings", "embed.weight"),
        ("include_heads", "lm_head.weight"),
        ("include_routers", "mlp.gate.weight"),
    ):
        assert kept(shapes, **{flag: True}).keys() == shapes.keys() - {name}


def test_a_head_of_another_name_has_the_shape_of_the_embeddings():
    shapes = {"embed.weight": (B, (512, 64)), "logits.weight": (B, (512, 64)), "layers.0.up.weight": (B, (512, 64))}
    assert kept(shapes).keys() == {"embed.weight", "logits.weight"}
    clip = {"text_model.token_embedding.weight": (B, (128, 64)), "visual_projection.weight": (B, (128, 64))}
    assert kept(clip).keys() == {"text_model.token_embedding.weight"}


def test_gates_of_gated_layers_are_linear():
    shapes = {"mlp.gate.weight": (B, (128, 64)), "mlp.up.weight": (B, (128, 64)), "moe.gate.weight": (B, (8, 64))}
    assert kept(shapes).keys() == {"moe.gate.weight"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("lm_head", {"lm_head.weight"}),
        ("lm_head.weight", {"lm_head.weight"}),
        ("layers.1", {"layers.1.mlp.up.weight", "layers.1.mlp.gates.weight"}),
        ("mlp.up", {"layers.1.mlp.up.weight", "layers.10.mlp.up.weight"}),
        ("*head", {"lm_head.weight"}),
        ("*.up", {"layers.1.mlp.up.weight", "layers.10.mlp.up.weight"}),
        ("layers.1?.*", {"layers.10.mlp.up.weight"}),
        ("re:.*head", {"lm_head.weight"}),
        ("re:.*up$", {"layers.1.mlp.up.weight", "layers.10.mlp.up.weight"}),
        (r"re:layers\.\d+\.", {"layers.1.mlp.up.weight", "layers.1.mlp.gates.weight", "layers.10.mlp.up.weight"}),
    ],
)
def test_patterns(pattern, names):
    every = ("lm_head.weight", "layers.1.mlp.up.weight", "layers.1.mlp.gates.weight", "layers.10.mlp.up.weight")
    shapes = dict.fromkeys(every, MATRIX)
    assert kept(shapes, include_heads=True, exclude=[pattern]) == dict.fromkeys(
        [n for n in every if n in names], "excluded"
    )
    assert kept(shapes, include_heads=True, include=[pattern]) == dict.fromkeys(
        [n for n in every if n not in names], "not included"
    )


@pytest.mark.parametrize("option", ["include", "exclude"])
@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("lm_haed", "matches no tensor of the model; its names are like lm_head.weight; did you mean 'lm_head'"),
        ("*.bias", "matches no tensor"),
        ("head", "matches no tensor"),
        ("re:head", "matches no tensor"),
        ("re:(", "is not a regular expression"),
        ("", "matches no tensor"),
    ],
)
def test_patterns_that_match_nothing(option, pattern, message):
    with pytest.raises(ValueError, match=f"{option}='.*' {message}"):
        choose({"lm_head.weight": MATRIX}, "nvfp4", **{option: [pattern]})


@pytest.mark.parametrize(
    ("include", "options", "message"),
    [
        ("lm_head", {}, r"lm_head\.weight \(output head; include_heads quantizes it\)"),
        (["mlp.up", "embed*"], {}, r"embed_tokens\.weight \(embedding; include_embeddings quantizes it\)"),
        ("re:.*router$", {}, r"layers\.0\.mlp\.router\.weight \(router of experts; include_routers quantizes it\)"),
        ("*.bias", {}, r"layers\.0\.mlp\.up\.bias \(1 dimension: not a matrix\)"),
        ("done", {}, r"done\.weight, done\.weight_scale \(uint8: already quantized"),
        ("mlp.up", {"exclude": "layers"}, r"layers\.0\.mlp\.up\.weight, layers\.0\.mlp\.up\.bias \(excluded\)"),
    ],
)
def test_patterns_that_choose_nothing(tmp_path, include, options, message):
    """Told before the work, with the option that chooses what they name."""
    source, target = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
    names = ("lm_head", "embed_tokens", "layers.0.mlp.router", "layers.0.mlp.up")
    tensors = {f"{name}.weight": np.ones((64, 512), np.float32) for name in names}
    done = checkpoints.split_parts({"done.weight": dlfp4.quantize(np.ones((64, 64), np.float32), "mxfp4")}, "quark")
    checkpoints.save(source, tensors | done | {"layers.0.mlp.up.bias": np.ones(64, np.float32)})
    with pytest.raises(ValueError, match=f"chooses nothing, as what it matches is kept: {message}"):
        quantize_model(source, target, **{"format": "nvfp4", "include": include, **options})
    assert not target.exists()
    flags = {"include_heads": True, "include_embeddings": True}
    assert len(quantize_model(source, target, "nvfp4", include=["lm_head", "embed*"], **flags)) == 7


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_string_is_one_pattern(option):
    shapes = {"lm_head.weight": MATRIX, "l.weight": MATRIX}
    assert choose(shapes, "nvfp4", **{option: "lm_head"}) == choose(shapes, "nvfp4", **{option: ["lm_head"]})
    assert choose(shapes, "nvfp4", **{option: None}) == choose(shapes, "nvfp4")
    for wrong in (b"lm_head", [b"lm_head"], 1, [None]):
        with pytest.raises(TypeError, match=f"{option}=.*: expected a pattern of names as a string, or several"):
            choose(shapes, "nvfp4", **{option: wrong})


def test_include_names_what_names_alone_do_not_tell():
    shapes = {"layers.0.mixer.A": MATRIX, "stack.weight": (B, (3, 64, 64))}
    assert kept(shapes).keys() == shapes.keys()
    assert not kept(shapes, include=["layers.0.mixer.A", "stack"])


@pytest.mark.parametrize(
    ("up", "down", "axis"),
    [
        ((4, 64, 256), (4, 128, 64), -2),  # Llama-4, Qwen3-VL
        ((4, 64, 128), (4, 64, 64), -2),  # gpt-oss, whose layers are as wide inside
        ((4, 256, 64), (4, 64, 128), -1),
        ((4, 128, 64), (4, 64, 64), -1),
    ],
)
@pytest.mark.parametrize("module", ["model.layers.0.mlp.experts", "layers.0.feed_forward"])
def test_experts_are_quantized_along_the_axis_that_products_sum_over(module, up, down, axis):
    shapes = {f"{module}.gate_up_proj": (B, up), f"{module}.down_proj": (B, down)}
    for choice in choose(shapes, "nvfp4").values():
        assert choice.quantized
        assert choice.axis == axis
        assert bool(choice.reason) == (axis == -2)
    for choice in choose(shapes, "nvfp4", axis=-3 - axis).values():
        assert choice.axis == -3 - axis


def test_experts_whose_axis_nothing_tells():
    (choice,) = choose({"experts.w": (B, (4, 64, 64))}, "nvfp4").values()
    assert choice.quantized
    assert "axis=-2 if" in choice.reason
    biased = {"experts.w": (B, (4, 64, 96)), "experts.w_bias": (B, (4, 96))}
    assert choose(biased, "nvfp4")["experts.w"].axis == -2


def test_gpt_2_stores_its_matrices_transposed():
    gpt = {
        "h.0.attn.c_attn.weight": (B, (64, 192)),
        "h.0.attn.c_attn.bias": (B, (192,)),
        "h.0.attn.c_proj.weight": (B, (64, 64)),
        "h.0.attn.bias": ("uint8", (1, 1, 64, 64)),
    }
    axes = {choice.name: choice.axis for choice in choose(gpt, "nvfp4").values() if choice.quantized}
    assert axes == {"h.0.attn.c_attn.weight": -2, "h.0.attn.c_proj.weight": -2}
    linear = gpt | {"h.0.attn.c_attn.weight": (B, (192, 64))}
    assert {choice.axis for choice in choose(linear, "nvfp4").values()} == {-1}


@pytest.mark.parametrize("shape", [(32, 64), (3, 32, 64)])
@pytest.mark.parametrize("convention", ["compressed-tensors", "modelopt"])
def test_what_is_quantized_for_a_convention_has_the_values_that_it_stores(shape, convention):
    rng = np.random.default_rng(5)
    for _ in range(50):  # of every seven global scales one is not the reciprocal of its reciprocal
        x = rng.standard_normal(shape).astype(np.float32)
        choice = choose({"up_proj.weight": x}, "nvfp4")["up_proj.weight"]
        q = quantize_chosen(x, choice, "nvfp4", convention=convention)
        parts = checkpoints.split_parts({"up_proj.weight": q}, convention)
        back = checkpoints.join_parts(parts)["up_proj.weight"]
        np.testing.assert_array_equal(back.global_scale.to_numpy(), q.global_scale.to_numpy())
        np.testing.assert_array_equal(back.dequantize().to_numpy(), q.dequantize().to_numpy())


@pytest.mark.parametrize("convention", [None, "gpt-oss"])
def test_quantized_along_the_chosen_axis(convention):
    x = np.random.default_rng(0).standard_normal((2, 64, 96)).astype(np.float32)
    (choice,) = choose({"experts.w": x}, "mxfp4", convention=convention, axis=-2).values()
    q = quantize_chosen(x, choice, "mxfp4", convention=convention)
    expected = dlfp4.quantize(np.ascontiguousarray(x.swapaxes(1, 2)), "mxfp4").dequantize().to_numpy()
    assert q.shape == (x.shape if convention is None else expected.shape)
    decoded = q.dequantize().to_numpy()
    np.testing.assert_array_equal(decoded.swapaxes(1, 2) if convention is None else decoded, expected)


def test_what_the_format_or_the_convention_cannot_hold():
    shapes = {"experts.w": (B, (2, 192, 256))}
    assert kept(shapes, "fp8_128x128", convention="deepseek") == {
        "experts.w": "deepseek holds no fp8_128x128 of shape (2, 192, 256)"
    }
    with pytest.raises(ValueError, match="gpt-oss stores no nvfp4"):
        choose(shapes, "nvfp4", convention="gpt-oss")
    with pytest.raises(ValueError, match="axis=1: expected None, -1"):
        choose(shapes, "nvfp4", axis=1)


def test_as_many_tensors_as_large_models_have():
    """What looked through all of them for each would take hours."""
    shapes = {f"{k}{end}": kind for k in range(20_000) for end, kind in (("", MATRIX), ("_packed", ("int8", (64, 64))))}
    assert len(choose(shapes, "nvfp4")) == 40_000


def test_a_file_keeps_the_bytes_of_what_is_quantized(tmp_path):
    """In the parts that others gave it, whatever the file is written as."""
    q = dlfp4.quantize(np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32), "nvfp4")
    others = checkpoints.split_parts({"layers.0.up_proj.weight": q}, "compressed-tensors")
    checkpoints.save(tmp_path / "a.safetensors", others | {"layers.1.up_proj.weight": np.ones((64, 64), np.float32)})
    for convention in (None, "modelopt"):
        outcomes = quantize_model(tmp_path / "a.safetensors", tmp_path / "b", "mxfp4", convention=convention)
        assert [outcome.name for outcome in outcomes if outcome.format] == ["layers.1.up_proj.weight"]
        stored = checkpoints.load(tmp_path / "b", join=False)
        for name, part in others.items():
            assert stored[name].dtype == part.dtype
            assert stored[name].reshape(-1).view("uint8").tolist() == part.reshape(-1).view("uint8").tolist()
        loaded = checkpoints.load(tmp_path / "b")
        assert {name: x.format.name for name, x in loaded.items()} == {
            "layers.0.up_proj.weight": "nvfp4",
            "layers.1.up_proj.weight": "mxfp4",
        }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_largest_magnitude(dtype):
    x = np.random.default_rng(0).standard_normal((300, 1000)).astype(dtype)
    assert largest_magnitude(dlfp4.asarray(x)) == np.abs(x).max()
    assert largest_magnitude(dlfp4.asarray(x).T) == np.abs(x).max()
    x[0, :3] = np.nan, np.inf, -9
    x[299, :2] = -np.inf, 1
    assert largest_magnitude(dlfp4.asarray(x)) == 9
    assert largest_magnitude(dlfp4.asarray(np.full((2, 2), np.nan, dtype))) == 0
    assert largest_magnitude(dlfp4.asarray(np.ones((0, 2), dtype))) == 0


def test_layers_that_engines_fuse_share_a_global_scale():
    q, k, v, o = (f"layers.0.attn.{name}_proj.weight" for name in "qkvo")
    shapes = dict.fromkeys((q, k, v, o, "layers.1.attn.q_proj.weight"), MATRIX)
    fused = {choice.name: choice.fused for choice in choose(shapes, "nvfp4").values()}
    assert fused == {q: (q, k, v), k: (q, k, v), v: (q, k, v), o: (), "layers.1.attn.q_proj.weight": ()}
    assert choose(shapes, "nvfp4", exclude=["k_proj"])[q].fused == (q, v)
    assert not any(choice.fused for choice in choose(shapes, "mxfp4").values())
    assert not any(choice.fused for choice in choose(shapes, "nvfp4", convention="mlx").values())
    x = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    assert shared_global_scale([x, 3 * x, 2 * x], "nvfp4") == dlfp4.quantize(3 * x, "nvfp4").global_scale.item()


@pytest.mark.parametrize("convention", [None, "modelopt", "compressed-tensors"])
@pytest.mark.parametrize("files", [1, 2])
def test_models_have_the_scales_that_engines_want(tmp_path, convention, files):
    """Wherever the layers lie."""
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    names = [f"layers.0.mlp.{name}.weight" for name in ("up_proj", "down_proj", "gate_proj")]
    tensors = {name: x * (k + 1) for k, name in enumerate(names)}
    (tmp_path / "model").mkdir()
    for number in range(files):
        part = {name: tensors[name] for k, name in enumerate(names) if k % files == number or files == 1}
        checkpoints.save(tmp_path / "model" / f"model-{number + 1:05}-of-{files:05}.safetensors", part)
    checkpoints.quantize_model(tmp_path / "model", tmp_path / "out", "nvfp4", convention=convention)
    loaded = checkpoints.load(tmp_path / "out")
    units = [loaded[name].global_scale.item() for name in names]
    assert units[0] == units[2] == pytest.approx(np.abs(3 * x).max() / 2688)
    assert units[1] == pytest.approx(np.abs(2 * x).max() / 2688)
    assert checkpoints.inspect(tmp_path / "out").flags == ()


@pytest.mark.parametrize(
    ("convention", "format"),
    [(spelling.convention, name) for spelling in SPELLINGS if spelling.convention for name in spelling.formats],
)
def test_models_in_every_convention(tmp_path, convention, format):
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    names = ["layers.0.up_proj.weight", "layers.1.up_proj.weight"]
    checkpoints.save(tmp_path / "a.safetensors", dict.fromkeys(names, x))
    options = {"convention": convention, "include": ["up_proj"]}  # gpt-oss has experts alone, unless told
    checkpoints.quantize_model(tmp_path / "a.safetensors", tmp_path / "b.safetensors", format, **options)
    loaded = checkpoints.load(tmp_path / "b.safetensors")
    unit = {"global_scale": 1.0} if convention == "mlx" and dlfp4.formats()[format].has_global_scale else {}
    held = {"gptq": "float16", "awq": "float16"}.get(convention)  # by loaders; others hold the weights' own type
    if convention == "compressed-tensors" and format.startswith("fp8"):
        held = "bfloat16"
    recipe = dlfp4.Recipe(scale_dtype=held) if held else None
    expected = dlfp4.quantize(x, format, recipe=recipe, **unit).dequantize().to_numpy()
    for name in names:
        np.testing.assert_allclose(loaded[name].dequantize().to_numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(("convention", "per_matrix"), [("modelopt", True), ("llama-4", True), (None, False)])
def test_stacks_of_experts_have_the_global_scales_that_the_convention_stores(tmp_path, convention, per_matrix):
    x = np.random.default_rng(0).standard_normal((3, 64, 128)).astype(np.float32) * np.array([[[1]], [[2]], [[5]]])
    tensors = {"layers.0.experts.gate_up_proj": x.astype(np.float32)}
    checkpoints.save(tmp_path / "a.safetensors", tensors)
    checkpoints.quantize_model(tmp_path / "a.safetensors", tmp_path / "b", "nvfp4", convention=convention)
    (q,) = checkpoints.load(tmp_path / "b").values()
    assert q.global_scale.shape == ((3,) if per_matrix else ())
    recipe = dlfp4.Recipe(global_scale_per="matrix" if per_matrix else "tensor")
    expected = dlfp4.quantize(tensors["layers.0.experts.gate_up_proj"], "nvfp4", recipe=recipe)
    np.testing.assert_array_equal(q.dequantize().to_numpy(), expected.dequantize().to_numpy())


@pytest.mark.parametrize(
    ("format", "convention", "options"),
    [
        ("fp8_row", "compressed-tensors", {"scale_dtype": "bfloat16"}),
        ("fp8_row", None, {"scale_dtype": "float16"}),
        ("fp8_128x128", "deepseek", {"scale_dtype": "float8_e8m0fnu"}),
        ("fp8_128x128", "deepseek-v4", {}),
        ("nvfp4", None, {"global_scale_per": "row"}),
    ],
)
def test_models_by_a_recipe_of_the_scales(tmp_path, format, convention, options):
    x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    checkpoints.save(tmp_path / "a.safetensors", {"layers.0.up_proj.weight": x, "layers.0.gate_proj.weight": x})
    recipe = dlfp4.Recipe(**options)
    checkpoints.quantize_model(tmp_path / "a.safetensors", tmp_path / "b", format, convention=convention, recipe=recipe)
    expected = dlfp4.quantize(x, format, recipe=recipe)
    for q in checkpoints.load(tmp_path / "b").values():
        assert q.scales.dtype.name == ("float8_e8m0fnu" if convention == "deepseek-v4" else expected.scales.dtype.name)
        np.testing.assert_array_equal(q.dequantize().to_numpy(), expected.dequantize().to_numpy())
