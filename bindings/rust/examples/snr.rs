//! Quantizes normally distributed numbers to several formats and prints the ratio of signal to noise of each.
//!
//!     DLFP4_LIB_DIR=$(python -c 'import dlfp4; print(dlfp4.get_library_dir())') cargo run --example snr

use dlfp4::{dequantize, quantize, Format, Matrix, MatrixMut, Options};

/// About normally distributed, the same numbers everywhere.
fn normal(count: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut uniform = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / 16777216.0
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f32>() - 6.0).collect()
}

fn decibels(exact: &[f32], got: &[f32]) -> f64 {
    let energy = |numbers: &mut dyn Iterator<Item = f32>| numbers.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let noise = energy(&mut exact.iter().zip(got).map(|(a, b)| a - b));
    10.0 * (energy(&mut exact.iter().copied()) / noise).log10()
}

fn main() -> Result<(), dlfp4::Error> {
    let (rows, columns) = (256, 512);
    let x = normal(rows * columns);
    println!("{:14}{:>10}{:>10}", "format", "bytes", "SNR, dB");
    for name in ["nvfp4", "mxfp4", "int4_g32", "mxfp6_e2m3", "mxfp8_e4m3"] {
        let q = quantize(Matrix::new(&x, rows, columns)?, Format::find(name)?, Options::default())?;
        let mut back = vec![0.0f32; x.len()];
        dequantize(&q, MatrixMut::new(&mut back, rows, columns)?)?;
        println!("{:14}{:>10}{:>10.1}", name, q.bytes(), decibels(&x, &back));
    }
    Ok(())
}
