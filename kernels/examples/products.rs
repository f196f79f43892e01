//! Generated matrix products beside the libraries, on every contraction of a BERT layer.
//!
//! `cargo run --release -p kernels --example products [CORES [ROUNDS [NAME]]]` prints, in the tensors' own dim order, GFLOP/s
//! (10⁹ flop a second, medians of interleaved rounds, warm) of the fastest configuration of the libraries and of the generated
//! kernels, with that configuration, and their geometric mean ratio. `NAME` keeps contractions whose title contains it.

use indexmap::IndexMap;
use kernels::contraction::Problem;
use kernels::device::cpu::Pool;
use kernels::{Buffer, Executable, KernelSpec, RunContext, Toolchain};
use sdfg::config::KernelConfig;
use sdfg::{Container, Dtype, Expr, Op, Operand, Operation, Pass, Role, Scalar, Sdfg, Unit};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

/// A contraction over dims named by letters.
fn spec(text: &str, sizes: &[(&str, i64)]) -> Result<KernelSpec, Box<dyn Error>> {
    let (inputs, out) = text.split_once("->").ok_or("write a,b->out")?;
    let (a, b) = inputs.split_once(',').ok_or("write a,b->out")?;
    let mut program = Sdfg::new("products");
    for (dim, size) in sizes {
        program.dims.insert(dim.to_string(), Expr::Int(*size));
    }
    let (mut indices, mut operands) = (IndexMap::new(), Vec::new());
    for (connector, subscripts) in [("a", a), ("b", b), ("out", out)] {
        let names: Vec<String> = subscripts.chars().map(String::from).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        indices.extend(names.iter().map(|n| (n.to_string(), n.to_string())));
        let role = if connector == "out" { Role::Output } else { Role::Input };
        program.add_container(Container::new(connector, &names, Dtype::F32, role));
        operands.push(Operand::new(connector, connector, &names));
    }
    let outputs = operands.split_off(2);
    let op = Op::Contraction { scale: Scalar::Const(1.0) };
    let operation = Operation { name: text.into(), op, indices, inputs: operands, outputs, pass: Pass::Forward, origin: None };
    Ok(KernelSpec::new(&program, &Unit::Operation(operation))?)
}

struct Lane {
    config: KernelConfig,
    kernel: Arc<dyn Executable>,
    samples: Vec<f64>,
}

impl Lane {
    fn median(&self) -> f64 {
        let mut samples = self.samples.clone();
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    }
}

/// The fastest of the libraries and the fastest generated kernel: GFLOP/s and configuration.
fn compare(spec: &KernelSpec, pool: &Pool, toolchain: &Toolchain, rounds: usize) -> Result<[(f64, String); 2], Box<dyn Error>> {
    let space = kernels::space(spec)?;
    let layouts: u64 = space.tensors().iter().map(|t| t.layouts.len() as u64).product();
    let knobs = space.count() / layouts;
    let mut numbers: Vec<u64> = (0..knobs).collect();
    numbers.sort_by(|x, y| space.promise(*x).total_cmp(&space.promise(*y)));
    let (mut seen, mut lanes) = (Vec::new(), Vec::new());
    let mut kinds = [0usize; 2];
    for n in numbers {
        let (config, identity) = (space.config(n), space.identity(n));
        let kind = usize::from(kernels::tiles::takes(&config));
        if seen.contains(&identity) || kinds[kind] >= 12 {
            continue;
        }
        kinds[kind] += 1;
        seen.push(identity);
        let kernel = kernels::compile(spec, &config, toolchain)?;
        lanes.push(Lane { config, kernel, samples: vec![] });
    }
    let mut buffers = Vec::new();
    for argument in spec.arguments() {
        let container = &spec.containers[&argument.data];
        let mut buffer = Buffer::of(container, &spec.shape(&argument.data)?, &sdfg::Layout::natural(container))?;
        for value in buffer.as_mut_slice().chunks_exact_mut(4) {
            value.copy_from_slice(&0.5f32.to_ne_bytes());
        }
        buffers.push(buffer);
    }
    let pointers: Vec<*mut u8> = buffers.iter_mut().map(Buffer::as_mut_ptr).collect();
    let context = RunContext { seed: 0, step: 0, dropout: false, pool, deadline: None };
    for round in 0..=rounds {
        for lane in &mut lanes {
            let start = Instant::now();
            // SAFETY: one buffer for each argument in the natural layouts, which is what knobs alone leave unchanged.
            unsafe { lane.kernel.run(&pointers, &context) }?;
            if round > 0 {
                lane.samples.push(start.elapsed().as_secs_f64());
            }
        }
    }
    let flop = Problem::of(spec)?.flop();
    let best = |kind: bool| {
        let mine = lanes.iter().filter(|l| kernels::tiles::takes(&l.config) == kind);
        let best = mine.min_by(|x, y| x.median().total_cmp(&y.median()));
        best.map_or((0.0, String::new()), |l| (flop / l.median() / 1e9, l.config.knobs.to_string()))
    };
    Ok([best(false), best(true)])
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let cores: usize = arguments.next().map_or(Ok(2), |a| a.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |a| a.parse())?;
    let name = arguments.next().unwrap_or_default();
    let (pool, toolchain) = (Pool::new(cores)?, Toolchain::system()?);
    let base = [("b", 8), ("j", 128), ("k", 128), ("h", 12), ("p", 64), ("w", 64), ("i", 768), ("u", 3072)];
    let large = [("b", 8), ("j", 512), ("k", 512), ("h", 16), ("p", 64), ("w", 64), ("i", 1024), ("u", 4096)];
    let texts = ["bji,hpi->bjhp", "bjhp,bkhp->hbjk", "hbjk,bkhw->bjhw", "bjhw,ihw->bji", "bji,ui->bju"];
    let mut logs = Vec::new();
    println!("{:<34} {:>9} {:>9} {:>6}", "contraction (GFLOP/s)", "libraries", "generated", "ratio");
    for (model, sizes) in [("BERT-base", &base[..]), ("BERT-large", &large)] {
        for text in texts {
            let (inputs, out) = text.split_once("->").ok_or("write a,b->out")?;
            let (a, b) = inputs.split_once(',').ok_or("write a,b->out")?;
            for text in [text.to_string(), format!("{out},{b}->{a}"), format!("{a},{out}->{b}")] {
                let title = format!("{model} {text}");
                if !title.contains(&name) {
                    continue;
                }
                let [library, generated] = compare(&spec(&text, sizes)?, &pool, &toolchain, rounds)?;
                let ratio = generated.0 / library.0;
                logs.push(ratio.ln());
                println!("{title:<34} {:>9.1} {:>9.1} {ratio:>6.3}  {} | {}", library.0, generated.0, library.1, generated.1);
            }
        }
    }
    println!("geometric mean of generated ÷ libraries: {:.3}", (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp());
    Ok(())
}
