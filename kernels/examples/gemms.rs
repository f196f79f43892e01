//! Generated matrix products beside the libraries, on every contraction of a BERT layer.
//!
//! `cargo run --release -p kernels --example gemms [CORES [ROUNDS [NAME [PYTHON]]]]` prints GFLOP/s (10⁹ flop a second, medians
//! of interleaved rounds, the second of two runs) of the fastest configuration of the crates' libraries and of the generated
//! kernels, and of PyTorch and NumPy where a `PYTHON` that has them is named. `own` is the tensors' own dim order, for crates and
//! generated kernels. For the ratio everyone takes the order that suits it best: the tensors' own, or matrices whose factors each
//! lie turned or not, one batch after another, which are what the Python libraries choose from. Each first finds its best
//! configuration; then the best run in turn, and ratios are medians over those rounds. `NAME` keeps contractions whose title
//! contains it.

use indexmap::IndexMap;
use kernels::contraction::ContractionProblem;
use kernels::pool::Pool;
use kernels::{AlignedBuffer, Executable, KernelSpec, RunContext, Toolchain};
use sdfg::config::KernelConfig;
use sdfg::{Container, Direction, Dtype, Expr, Op, Operand, Operation, Role, Scalar, Sdfg, Unit};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
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
    let operation = Operation { name: text.into(), op, indices, inputs: operands, outputs, pass: Direction::Forward, origin: None };
    Ok(KernelSpec::new(&program, &Unit::Operation(operation))?)
}

struct Lane<'a> {
    order: &'a Order,
    config: KernelConfig,
    kernel: Arc<dyn Executable>,
    samples: Vec<f64>,
}

impl Lane<'_> {
    fn is_generated(&self) -> bool {
        kernels::tiles::is_tiled(&self.config)
    }

    fn best(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Seconds of the second of two runs: the first wakes threads.
    fn run(&self, pool: &Pool) -> Result<f64, Box<dyn Error>> {
        let context = RunContext { seed: 0, step: 0, dropout: false, pool, deadline: None, parameters: 0 };
        let (mut seconds, _held) = (0.0, pool.hold());
        for _ in 0..2 {
            let start = Instant::now();
            // SAFETY: one buffer for each argument in the natural layouts, which is what knobs alone leave unchanged.
            unsafe { self.kernel.run(&self.order.pointers, &context) }?;
            seconds = start.elapsed().as_secs_f64();
        }
        Ok(seconds)
    }
}

/// An order of a contraction's dims in memory.
struct Order {
    name: &'static str,
    spec: KernelSpec,
    pointers: Vec<*mut u8>,
    _buffers: Vec<AlignedBuffer>,
}

impl Order {
    fn new(name: &'static str, text: &str, sizes: &[(&str, i64)]) -> Result<Self, Box<dyn Error>> {
        let spec = spec(text, sizes)?;
        let mut buffers = Vec::new();
        for argument in spec.arguments() {
            let container = &spec.containers[&argument.data];
            let mut buffer = AlignedBuffer::of(container, &spec.shape(&argument.data)?, &sdfg::Layout::row_major(container))?;
            for value in buffer.as_mut_slice().chunks_exact_mut(4) {
                value.copy_from_slice(&0.5f32.to_ne_bytes());
            }
            buffers.push(buffer);
        }
        let pointers = buffers.iter_mut().map(AlignedBuffer::as_mut_ptr).collect();
        Ok(Order { name, spec, pointers, _buffers: buffers })
    }

    /// The tensors' own, and matrices that lie turned or not.
    fn all(text: &str, sizes: &[(&str, i64)]) -> Result<Vec<Self>, Box<dyn Error>> {
        let [z, m, n, k] = shape(text, sizes).ok_or("write a,b->out")?;
        let matrices = [("z", z), ("m", m), ("n", n), ("k", k)];
        let mut all = vec![Order::new("own", text, sizes)?];
        for (name, text) in [("nn", "zmk,zkn->zmn"), ("nt", "zmk,znk->zmn"), ("tn", "zkm,zkn->zmn"), ("tt", "zkm,znk->zmn")] {
            let (text, sizes) = if z > 1 { (text.to_string(), &matrices[..]) } else { (text.replace('z', ""), &matrices[1..]) };
            all.push(Order::new(name, &text, sizes)?);
        }
        Ok(all)
    }

    /// The most promising configurations of libraries and of generated kernels, so many of each.
    fn lanes(&self, each: usize, toolchain: &Toolchain) -> Result<Vec<Lane<'_>>, Box<dyn Error>> {
        let space = kernels::space(&self.spec)?;
        let layouts: u64 = space.tensors().iter().map(|t| t.layouts.len() as u64).product();
        let mut numbers: Vec<u64> = (0..space.count() / layouts).collect();
        numbers.sort_by(|x, y| space.predicted_cost(*x).total_cmp(&space.predicted_cost(*y)));
        let (mut seen, mut lanes, mut kinds) = (Vec::new(), Vec::new(), [0; 2]);
        for n in numbers {
            let (config, identity) = (space.config(n), space.identity(n));
            let kind = usize::from(kernels::tiles::is_tiled(&config));
            if seen.contains(&identity) || kinds[kind] >= each {
                continue;
            }
            kinds[kind] += 1;
            seen.push(identity);
            let kernel = kernels::compile(&self.spec, &config, toolchain)?;
            lanes.push(Lane { order: self, config, kernel, samples: vec![] });
        }
        Ok(lanes)
    }
}

fn median(samples: impl IntoIterator<Item = f64>) -> f64 {
    let mut samples: Vec<f64> = samples.into_iter().collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Libraries in a Python process.
struct Python {
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Python {
    fn start(python: &str, cores: usize) -> Result<Self, Box<dyn Error>> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/peers/products.py");
        let threads = cores.to_string();
        let mut child = Command::new(python)
            .args([script, &threads])
            .envs(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"].map(|v| (v, &threads)))
            // Threads that wait in a loop would take the processors from what runs next.
            .env("OMP_WAIT_POLICY", "PASSIVE")
            .env("KMP_BLOCKTIME", "0")
            .env("OPENBLAS_THREAD_TIMEOUT", "4")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (to, from) = child.stdin.take().zip(child.stdout.take()).ok_or("no pipes")?;
        Ok(Python { to, from: BufReader::new(from) })
    }

    /// Seconds of one product, and which library in which order.
    fn run(&mut self, shape: [i64; 4]) -> Result<(f64, String), Box<dyn Error>> {
        let [batch, m, n, k] = shape;
        writeln!(self.to, "{batch} {m} {n} {k} 2")?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let mut words = line.split_whitespace();
        let name = words.next().ok_or("Python answered nothing")?.to_string();
        // The first of two wakes its threads.
        Ok((words.last().ok_or("no time")?.parse()?, name))
    }
}

/// Batch, rows, columns and depth of a contraction.
fn shape(text: &str, sizes: &[(&str, i64)]) -> Option<[i64; 4]> {
    let (inputs, out) = text.split_once("->")?;
    let (a, b) = inputs.split_once(',')?;
    let mut shape = [1; 4];
    for (dim, size) in sizes {
        let at = match [a, b, out].map(|t| t.contains(dim)) {
            [true, true, true] => 0,
            [true, false, true] => 1,
            [false, true, true] => 2,
            [true, true, false] => 3,
            _ => continue,
        };
        shape[at] *= size;
    }
    Some(shape)
}

struct Race {
    /// GFLOP/s of crates and generated kernels in the tensors' own order, then of crates, Python's libraries and generated kernels
    /// in any.
    rates: [f64; 5],
    /// Order and configuration of the last three.
    names: [String; 3],
    /// Generated ÷ the best library, in any order.
    ratio: f64,
}

/// The fastest of each kind, side by side.
fn compare(
    orders: &[Order],
    pool: &Pool,
    toolchain: &Toolchain,
    rounds: usize,
    python: &mut Option<(Python, [i64; 4])>,
) -> Result<Race, Box<dyn Error>> {
    let mut lanes = Vec::new();
    for (n, order) in orders.iter().enumerate() {
        lanes.extend(order.lanes(if n == 0 { 12 } else { 6 }, toolchain)?);
    }
    let key = |lane: &Lane| (lane.order.name == "own", lane.is_generated());
    for round in 0..=rounds {
        for lane in &mut lanes {
            let seconds = lane.run(pool)?;
            if round > 0 {
                lane.samples.push(seconds);
            }
        }
        if round > 0 {
            // What is far behind by now will not be the best.
            let best = |of| lanes.iter().filter(|l| key(l) == of).map(Lane::best).fold(f64::INFINITY, f64::min);
            let bests = [false, true].map(|own| [false, true].map(|generated| best((own, generated))));
            lanes.retain(|l| l.best() <= 1.2 * bests[usize::from(key(l).0)][usize::from(key(l).1)]);
        }
    }
    if std::env::var_os("ALL").is_some() {
        for lane in &lanes {
            println!(
                "    {:9.1} {} {}",
                ContractionProblem::of(&lane.order.spec)?.flop() / lane.best() / 1e9,
                lane.order.name,
                lane.config.knobs
            );
        }
    }
    let fastest = |generated: bool, own: bool| {
        let mine = lanes.iter().filter(|l| l.is_generated() == generated && (!own || l.order.name == "own"));
        mine.min_by(|x, y| x.best().total_cmp(&y.best())).ok_or("a kind has no configuration")
    };
    let (own_library, own_generated) = (fastest(false, true)?, fastest(true, true)?);
    let (library, generated) = (fastest(false, false)?, fastest(true, false)?);
    let mut final_rounds: Vec<[f64; 5]> = Vec::new();
    let mut external = String::new();
    for round in 0..=5 * rounds.div_ceil(2) {
        // In turns from another one on each time: who runs after another process finds its data in farther memory.
        let mut times = [f64::INFINITY; 5];
        for kind in (0..5).map(|n| (n + round) % 5) {
            times[kind] = match (kind, python.as_mut()) {
                (3, Some((python, shape))) => {
                    let (seconds, name) = python.run(*shape)?;
                    external = name;
                    seconds
                }
                (3, None) => continue,
                _ => [own_library, own_generated, library, library, generated][kind].run(pool)?,
            };
        }
        if round > 0 {
            final_rounds.push(times);
        }
    }
    let flop = ContractionProblem::of(&generated.order.spec)?.flop();
    let rate = |kind: usize| flop / median(final_rounds.iter().map(|t| t[kind])) / 1e9;
    let against = |kind: usize| median(final_rounds.iter().map(|t| t[kind] / t[4]));
    let name = |lane: &Lane| format!("{} {}", lane.order.name, lane.config.knobs);
    Ok(Race {
        rates: [rate(0), rate(1), rate(2), rate(3), rate(4)],
        names: [name(library), external, name(generated)],
        ratio: against(2).min(against(3)),
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: no thread but this one runs yet.
    unsafe { kernels::InstructionSet::limit_libraries() };
    let mut arguments = std::env::args().skip(1);
    let cores: usize = arguments.next().map_or(Ok(2), |a| a.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |a| a.parse())?;
    let name = arguments.next().unwrap_or_default();
    let mut python = arguments.next().map(|path| Python::start(&path, cores)).transpose()?;
    let (pool, toolchain) = (Pool::new(cores)?, Toolchain::system()?);
    // Elsewhere no peak is known.
    let peak = kernels::peak::peak(&pool).unwrap_or(f64::NAN);
    println!("{:?}: {peak:.1} GFLOP/s of multiply-adds alone", kernels::InstructionSet::native());
    let base = [("b", 8), ("j", 128), ("k", 128), ("h", 12), ("p", 64), ("w", 64), ("i", 768), ("u", 3072)];
    let large = [("b", 8), ("j", 512), ("k", 512), ("h", 16), ("p", 64), ("w", 64), ("i", 1024), ("u", 4096)];
    let small = [("b", 2), ("j", 128), ("k", 128), ("h", 16), ("p", 64), ("w", 64), ("i", 1024), ("u", 4096)];
    let texts = ["bji,hpi->bjhp", "bjhp,bkhp->hbjk", "hbjk,bkhw->bjhw", "bjhw,ihw->bji", "bji,ui->bju"];
    let mut logs = Vec::new();
    println!(
        "{:<34} {:^19} {:>9} {:>9} {:>9} {:>6} {:>7}",
        "contraction (GFLOP/s)", "own: crates, ours", "crates", "Python", "ours", "ratio", "of peak"
    );
    for (model, sizes) in [("BERT-base", &base[..]), ("BERT-large", &large), ("small", &small)] {
        for text in texts {
            let (inputs, out) = text.split_once("->").ok_or("write a,b->out")?;
            let (a, b) = inputs.split_once(',').ok_or("write a,b->out")?;
            for text in [text.to_string(), format!("{out},{b}->{a}"), format!("{a},{out}->{b}")] {
                let title = format!("{model} {text}");
                if !title.contains(&name) {
                    continue;
                }
                let mut asked = python.take().zip(shape(&text, sizes));
                let Race { rates, names, ratio } = compare(&Order::all(&text, sizes)?, &pool, &toolchain, rounds, &mut asked)?;
                python = asked.map(|(python, _)| python);
                logs.push(ratio.ln());
                let share = 100.0 * rates[4] / peak;
                let rates = rates.map(|rate| format!("{rate:>9.1}")).join(" ");
                println!("{title:<34} {rates} {ratio:>6.3} {share:>6.1}%  {}", names.join(" | "));
            }
        }
    }
    println!("geometric mean of generated ÷ best library: {:.3}", (logs.iter().sum::<f64>() / logs.len().max(1) as f64).exp());
    Ok(())
}
