//! How long the exact choice takes on invented stores of the sizes that matter:
//! `cargo run --release -p layouts --example scale`.

#[path = "../tests/layouts/encoder.rs"]
mod encoder;
#[path = "../tests/layouts/synthetic.rs"]
#[allow(dead_code)]
mod synthetic;

use encoder::{Size, encoder};
use layouts::Model;
use layouts::exact::Limits;
use layouts::relayout::RelayoutCosts;
use layouts::selection::optimum;
use std::time::Instant;

fn report(name: &str, model: &Model, limits: Limits) {
    let start = Instant::now();
    let mut looks = 0;
    let verbose = std::env::var_os("VERBOSE").is_some();
    let found = optimum(model, limits, &mut |p| {
        looks += 1;
        if verbose {
            println!(
                "  {:.1} s: {:.4} ms, gap {:.4}%, work {:.1e}",
                start.elapsed().as_secs_f64(),
                p.total as f64 / 1e9,
                100.0 * (p.total - p.bound) as f64 / p.total as f64,
                p.work as f64
            );
        }
        true
    });
    let gap = 100.0 * (found.total - found.bound) as f64 / found.total as f64;
    println!(
        "{name}: {} kernels, {} variables, {:.3} ms, gap {gap:.4}%, {looks} parts, {:.2} s",
        model.factors.len(),
        model.classes.len(),
        found.total as f64 / 1e9,
        start.elapsed().as_secs_f64()
    );
}

fn main() {
    for (layouts, measured) in [(12, 300), (12, 900), (24, 300), (24, 900), (12, 5000), (24, 5000)] {
        let (program, store) = encoder(Size { layouts, measured });
        match Model::new(&program, &store, &RelayoutCosts::new(&program, &store)) {
            Ok(model) => report(&format!("encoder, {layouts} layouts, {measured} configurations a kernel"), &model, Limits::default()),
            Err(error) => println!("{error}"),
        }
    }
}
