//! The exact choice against every choice there is, on 10,000 random programs with residual edges, ties, relayouts and
//! alternatives; with tables and by splitting alone; every certificate checked.
//! `cargo run --release -p layouts --example brute_force`.

#[path = "../tests/layouts/brute.rs"]
#[allow(dead_code)]
mod brute;
#[path = "../tests/layouts/synthetic.rs"]
#[allow(dead_code)]
mod synthetic;

use layouts::Model;
use layouts::certificate::Certificate;
use layouts::exact::{self, SearchLimits};
use layouts::relayout::RelayoutCosts;
use layouts::selection::exactly;
use layouts::verify::verify;

const PROGRAMS: u64 = 10_000;

fn main() -> std::process::ExitCode {
    let (mut equal, mut certified, mut choices) = (0, 0, 0);
    for seed in 0..PROGRAMS {
        let (program, store) = synthetic::any(seed);
        let all = brute::brute_force(&program, &store);
        choices += all.len();
        let costs = RelayoutCosts::new(&program, &store);
        let Ok(model) = Model::new(&program, &store, &costs) else { continue };
        let mut ways = [SearchLimits::default(), SearchLimits { table: 2, work: u64::MAX }].into_iter().map(|limits| {
            let optimum = exact::solve(&model, limits);
            let selection = exactly(&model, &costs, &optimum);
            let certificate = Certificate::new(&program, &store, &model, &optimum.into(), selection.unmeasured().count());
            match verify(&certificate, &store) {
                Ok(_) => certified += 1,
                Err(error) => println!("seed {seed}: {error}"),
            }
            selection.proven && selection.total_ms == all[0]
        });
        let (tables, splits) = (ways.next() == Some(true), ways.next() == Some(true));
        equal += u64::from(tables && splits);
    }
    println!("equal on {equal} of {PROGRAMS} programs ({choices} choices in all); {certified} of {} certificates confirmed", 2 * PROGRAMS);
    std::process::ExitCode::from(u8::from(equal < PROGRAMS || certified < 2 * PROGRAMS))
}
