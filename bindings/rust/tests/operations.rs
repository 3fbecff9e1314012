//! Every operation, and what each refuses.

use dlfp4::{
    cast, dequantize, grouped_matmul, matmul, quantize, Axis, Bf16, Format, Matrix, MatrixMut, Options, Routing,
};

const FORMATS: [&str; 6] = ["nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp8_e4m3", "fp8_e4m3", "uint4_g32"];

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 37 % 101) as f32 / 16.0 - 3.0).collect()
}

/// The largest difference.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn tensors_come_back() {
    let x = numbers(64 * 64);
    for name in FORMATS {
        for axis in [Axis::Rows, Axis::Columns] {
            for hadamard in [None, Some(7)] {
                let options = Options { axis, hadamard, ..Options::default() };
                let q = quantize(Matrix::new(&x, 64, 64).unwrap(), Format::find(name).unwrap(), options).unwrap();
                let mut back = vec![0.0f32; x.len()];
                dequantize(&q, MatrixMut::new(&mut back, 64, 64).unwrap()).unwrap();
                let most = if hadamard.is_some() { 2.5 } else { 0.6 };
                assert!(distance(&x, &back) <= most, "{name}, {axis:?}, {hadamard:?}: {}", distance(&x, &back));
                assert_eq!(q.format().name(), name);
            }
        }
    }
}

#[test]
fn parts_have_their_sizes() {
    let x = numbers(4 * 64);
    let q = quantize(Matrix::new(&x, 4, 64).unwrap(), Format::find("nvfp4").unwrap(), Options::default()).unwrap();
    assert_eq!((q.data().len(), q.scales().len(), q.bytes()), (128, 16, 148));
    assert_eq!(q.global_scale(), Some(3.25 / 2688.0));
    let given = Options { global_scale: Some(0.5), ..Options::default() };
    let q = quantize(Matrix::new(&x, 4, 64).unwrap(), Format::find("nvfp4").unwrap(), given).unwrap();
    assert_eq!(q.global_scale(), Some(0.5));
}

#[test]
fn products_are_those_of_decoded_weights() {
    let (x, w) = (numbers(3 * 64), numbers(16 * 64));
    let activations = Matrix::new(&x, 3, 64).unwrap();
    let q = quantize(Matrix::new(&w, 16, 64).unwrap(), Format::find("mxfp4").unwrap(), Options::default()).unwrap();
    let mut decoded = vec![0.0f32; w.len()];
    dequantize(&q, MatrixMut::new(&mut decoded, 16, 64).unwrap()).unwrap();
    let (mut got, mut expected) = (vec![0.0f32; 48], vec![0.0f32; 48]);
    matmul(&activations, &q, MatrixMut::new(&mut got, 3, 16).unwrap(), 0.5).unwrap();
    let decoded = Matrix::new(&decoded, 16, 64).unwrap();
    matmul(&activations, &decoded, MatrixMut::new(&mut expected, 3, 16).unwrap(), 0.5).unwrap();
    assert!(distance(&got, &expected) <= 1e-3);
    assert!(got.iter().any(|&sum| sum != 0.0));
}

#[test]
fn rows_are_multiplied_by_their_experts() {
    let (x, w) = (numbers(4 * 64), numbers(2 * 16 * 64));
    let tokens = Matrix::new(&x, 4, 64).unwrap();
    let stack = quantize(Matrix::new(&w, 32, 64).unwrap(), Format::find("mxfp4").unwrap(), Options::default()).unwrap();
    let mut all = vec![0.0f32; 4 * 32];
    matmul(&tokens, &stack, MatrixMut::new(&mut all, 4, 32).unwrap(), 1.0).unwrap();
    let product = |token: usize, expert: usize| &all[token * 32 + expert * 16..][..16];

    let mut rows = vec![9.0f32; 4 * 16];
    let in_order = Routing { ends: &[1, 3], indices: None, weights: None };
    grouped_matmul(&tokens, &stack, in_order, MatrixMut::new(&mut rows, 4, 16).unwrap(), 1.0).unwrap();
    let expected = [product(0, 0), product(1, 1), product(2, 1), &[0.0; 16]].concat();
    assert!(distance(&rows, &expected) <= 1e-3);

    let mut gathered = vec![9.0f32; 3 * 16];
    let of_tokens = Routing { ends: &[2, 3], indices: Some(&[3, 0, 3]), weights: None };
    grouped_matmul(&tokens, &stack, of_tokens, MatrixMut::new(&mut gathered, 3, 16).unwrap(), 1.0).unwrap();
    assert!(distance(&gathered, &[product(3, 0), product(0, 0), product(3, 1)].concat()) <= 1e-3);

    let mut sums = vec![9.0f32; 4 * 16];
    let added = Routing { weights: Some(&[2.0, 1.0, -1.0]), ..of_tokens };
    grouped_matmul(&tokens, &stack, added, MatrixMut::new(&mut sums, 4, 16).unwrap(), 1.0).unwrap();
    let third: Vec<f32> = product(3, 0).iter().zip(product(3, 1)).map(|(a, b)| 2.0 * a - b).collect();
    assert!(distance(&sums, &[product(0, 0), &[0.0; 32], &third].concat()) <= 1e-2);

    for wrong in [
        Routing { ends: &[3, 1], ..in_order },
        Routing { indices: Some(&[0, 4, 1]), ..of_tokens },
        Routing { indices: None, ..added },
    ] {
        let out = MatrixMut::new(&mut sums, 4, 16).unwrap();
        assert!(grouped_matmul(&tokens, &stack, wrong, out, 1.0).is_err(), "{wrong:?}");
    }
}

#[test]
fn casts_round_to_nearest_even() {
    let x = [1.0f32, 1.0 + 1.0 / 256.0, -2.5, f32::MAX];
    let mut out = [Bf16::default(); 4];
    cast(Matrix::new(&x, 2, 2).unwrap(), MatrixMut::new(&mut out, 2, 2).unwrap()).unwrap();
    assert_eq!(out.map(|each| each.0), [0x3F80, 0x3F80, 0xC020, 0x7F80]);
}

#[test]
fn what_does_not_fit_is_refused_with_words() {
    let x = numbers(64);
    assert!(Matrix::new(&x, 3, 20).is_err());
    assert!(Format::find("fp5").unwrap_err().to_string().contains("format"));
    let q = quantize(Matrix::new(&x, 2, 32).unwrap(), Format::find("mxfp4").unwrap(), Options::default()).unwrap();
    let mut out = vec![0.0f32; 64];
    let error = dequantize(&q, MatrixMut::new(&mut out, 4, 16).unwrap()).unwrap_err();
    assert_eq!(error.status(), 2);
    let given = Options { global_scale: Some(1.0), ..Options::default() };
    assert!(quantize(Matrix::new(&x, 2, 32).unwrap(), Format::find("mxfp4").unwrap(), given).is_err());
    let zero = Options { global_scale: Some(0.0), ..Options::default() };
    assert!(quantize(Matrix::new(&x, 2, 32).unwrap(), Format::find("nvfp4").unwrap(), zero).is_err());
}

#[test]
fn the_library_describes_itself() {
    assert_eq!(dlfp4::version(), env!("CARGO_PKG_VERSION"));
    assert!(!dlfp4::isa().is_empty());
    dlfp4::set_num_threads(1);
    assert_eq!(dlfp4::num_threads(), 1);
    dlfp4::set_num_threads(0);
}
