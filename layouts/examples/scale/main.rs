//! How long the exact choice takes on invented stores of the sizes that matter:
//! `cargo run --release -p layouts --example scale`.

#[path = "../../tests/layouts/encoder.rs"]
mod encoder;
mod resnet;
#[path = "../../tests/layouts/synthetic.rs"]
#[allow(dead_code)]
mod synthetic;

use encoder::{Size, encoder};
use layouts::exact::SearchLimits;
use layouts::relayout::RelayoutCosts;
use layouts::selection::optimum;
use layouts::{Model, SelectionProblem, Store};

/// Seconds of this thread on a processor, however loaded the machine is; of the clock where the system does not tell.
fn seconds() -> f64 {
    let ran = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = ran.and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok());
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    nanoseconds.map_or_else(|| START.elapsed().as_secs_f64(), |ns| ns / 1e9)
}

fn report(name: &str, model: &Model, limits: SearchLimits) {
    let start = seconds();
    let mut looks = 0;
    let verbose = std::env::var_os("VERBOSE").is_some();
    let found = optimum(model, limits, &mut |p| {
        looks += 1;
        if verbose {
            println!(
                "  {:.1} s: {:.4} ms, gap {:.4}%, work {:.1e}",
                seconds() - start,
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
        seconds() - start
    );
}

fn modelled(of: &(SelectionProblem, Store)) -> Model {
    Model::new(&of.0, &of.1, &RelayoutCosts::new(&of.0, &of.1)).expect("an invented store is complete")
}

/// 24 layers: x and d_x of a layer are y and d_y of the one before.
fn stack(size: Size, count: usize) {
    let store = encoder(size);
    let model = modelled(&store);
    let start = seconds();
    let joins = vec![("y".to_string(), "x".to_string()), ("d_y".to_string(), "d_x".to_string())];
    match layouts::stack::solve(&model, &joins, count, &[], SearchLimits::default(), &mut |_| true) {
        Ok(found) => println!(
            "{count} encoders, {} layouts, {} configurations a kernel: {:.3} ms, gap {:.4}%, {} searches, {:.2} s",
            size.layouts,
            size.measured,
            found.total as f64 / 1e9,
            100.0 * (found.total - found.bound) as f64 / found.total as f64,
            found.searches,
            seconds() - start
        ),
        Err(error) => println!("{error}"),
    }
}

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |what: &str| only.as_ref().is_none_or(|only| only == what);
    for measured in [60, 200].into_iter().filter(|_| wanted("resnet")) {
        report(
            &format!("ResNet-50, 6 layouts, {measured} configurations a kernel"),
            &modelled(&resnet::resnet(measured)),
            SearchLimits::default(),
        );
    }
    for (layouts, measured) in
        [(12, 300), (12, 900), (24, 300), (24, 900), (12, 5000), (24, 5000)].into_iter().filter(|_| wanted("encoder"))
    {
        let name = format!("encoder, {layouts} layouts, {measured} configurations a kernel");
        report(&name, &modelled(&encoder(Size { layouts, measured })), SearchLimits::default());
    }
    for (layouts, measured) in [(12, 5000), (12, 900), (24, 5000), (12, 300)].into_iter().filter(|_| wanted("stack")) {
        stack(Size { layouts, measured }, 24);
    }
}
