//! Speed of every contraction of a BERT layer, by library, use of the cores and mapping.
//!
//! `cargo run --release -p kernels --example contractions [CORES [ROUNDS [NAME]]]` prints GFLOP/s (10⁹ flop a second, medians
//! of interleaved rounds, warm) in the tensors' own dim order: for each library and use of the cores the fastest mapping, and,
//! marked `*`, what runs when no knob is set. `NAME` keeps the contractions whose title contains it. Mappings that are
//! predicted to take over three times as long as the best are not run.

use indexmap::IndexMap;
use kernels::contraction::{ContractionProblem, mappings};
use kernels::target::cpu::gemm_library::{ContractionConfig, ContractionSpace, GemmLibrary, Threads};
use sdfg::{Bindings, Container, Direction, Dtype, Expr, Op, Operand, Operation, Role, Scalar};
use std::error::Error;
use std::time::Instant;

/// A contraction over dims named by letters.
fn problem(text: &str, sizes: &Bindings) -> Result<ContractionProblem, Box<dyn Error>> {
    let (inputs, out) = text.split_once("->").ok_or("write a,b->out")?;
    let (a, b) = inputs.split_once(',').ok_or("write a,b->out")?;
    let (mut indices, mut containers, mut operands) = (IndexMap::new(), IndexMap::new(), Vec::new());
    for (connector, subscripts) in [("a", a), ("b", b), ("out", out)] {
        let names: Vec<String> = subscripts.chars().map(String::from).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        indices.extend(names.iter().map(|n| (n.to_string(), n.to_string())));
        containers.insert(connector.to_string(), Container::new(connector, &names, Dtype::F32, Role::Transient));
        operands.push(Operand::new(connector, connector, &names));
    }
    let outputs = operands.split_off(2);
    let op = Op::Contraction { scale: Scalar::Const(1.0) };
    let operation = Operation { name: text.into(), op, indices, inputs: operands, outputs, pass: Direction::Forward, origin: None };
    let dims = sizes.keys().map(|s| (s.clone(), Expr::sym(s))).collect();
    Ok(ContractionProblem::new(&operation, &containers, &dims, sizes)?)
}

/// Median seconds of each choice, rounds interleaved.
fn measure(
    space: &ContractionSpace,
    problem: &ContractionProblem,
    choices: &[ContractionConfig],
    pool: &rayon::ThreadPool,
    rounds: usize,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let mut buffers = problem.tensors.each_ref().map(|t| vec![0.5f32; t.storage.iter().product()]);
    let tensors = buffers.each_mut().map(|b| b.as_mut_ptr());
    let plans = choices.iter().map(|c| space.plan(c)).collect::<Result<Vec<_>, _>>()?;
    let mut samples = vec![Vec::new(); plans.len()];
    for round in 0..=rounds {
        for (plan, samples) in plans.iter().zip(&mut samples) {
            let start = Instant::now();
            // SAFETY: three separate buffers of the sizes that the problem states.
            unsafe { plan.run(tensors.map(<*mut f32>::cast), pool, &|| false) };
            if round > 0 {
                samples.push(start.elapsed().as_secs_f64());
            }
        }
    }
    for samples in &mut samples {
        samples.sort_by(f64::total_cmp);
    }
    Ok(samples.iter().map(|s| s[s.len() / 2]).collect())
}

/// Measures one contraction and prints its rows.
fn compare(title: &str, problem: ContractionProblem, pool: &rayon::ThreadPool, rounds: usize) -> Result<(), Box<dyn Error>> {
    let space = ContractionSpace::new(problem.clone(), pool.current_num_threads());
    let layouts = space.choice(0)?.layouts;
    let default = space.default_choice(layouts.clone())?;
    let limit = 3.0 * space.seconds(&default)?;
    let axes = problem.axes([&layouts[0], &layouts[1], &layouts[2]])?;
    let mut choices = Vec::new();
    for mapping in mappings(&axes) {
        for (library, threads) in GemmLibrary::ALL.into_iter().flat_map(|l| Threads::ALL.map(|t| (l, t))) {
            let choice = ContractionConfig { layouts: layouts.clone(), mapping: mapping.clone(), library, threads };
            if space.seconds(&choice)? <= limit {
                choices.push(choice);
            }
        }
    }
    let seconds = measure(&space, &problem, &choices, pool, rounds)?;
    let mut rows: Vec<(&ContractionConfig, f64)> = choices.iter().zip(seconds).collect();
    rows.sort_by(|x, y| x.1.total_cmp(&y.1));
    println!("\n{title}");
    let mut shown = Vec::new();
    for (choice, seconds) in rows {
        let kind = (choice.library, choice.threads);
        if shown.contains(&kind) && *choice != default {
            continue;
        }
        shown.push(kind);
        let flop = space.plan(choice)?.call.flop();
        let (mark, measured) = (if *choice == default { "*" } else { " " }, flop / seconds / 1e9);
        let predicted = flop / space.seconds(choice)? / 1e9;
        let (mapping, library, threads) = (choice.mapping.to_string(), choice.library, choice.threads);
        println!("{mark} {mapping:<12} {library:<8} {threads:<7} {measured:7.1} GFLOP/s  (predicted {predicted:.0})");
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: no thread but this one runs yet.
    unsafe { kernels::InstructionSet::limit_libraries() };
    let mut arguments = std::env::args().skip(1);
    let cores: usize = arguments.next().map_or(Ok(2), |a| a.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(5), |a| a.parse())?;
    let name = arguments.next().unwrap_or_default();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(cores).build()?;
    let base: [(&str, i64); 8] = [("b", 8), ("j", 128), ("k", 128), ("h", 12), ("p", 64), ("w", 64), ("i", 768), ("u", 3072)];
    let large: [(&str, i64); 8] = [("b", 8), ("j", 512), ("k", 512), ("h", 16), ("p", 64), ("w", 64), ("i", 1024), ("u", 4096)];
    let texts = ["phi,ibj->phbj", "phbk,phbj->hbjk", "whbk,hbjk->whbj", "whi,whbj->ibj", "ui,ibj->ubj"];
    for (model, sizes) in [("BERT-base", base), ("BERT-large", large)] {
        let sizes: Bindings = sizes.iter().map(|(s, n)| (s.to_string(), *n)).collect();
        for text in texts {
            let (inputs, out) = text.split_once("->").ok_or("write a,b->out")?;
            let (a, b) = inputs.split_once(',').ok_or("write a,b->out")?;
            for text in [text.to_string(), format!("{out},{b}->{a}"), format!("{a},{out}->{b}")] {
                let title = format!("{model} {text}");
                if title.contains(&name) {
                    compare(&title, problem(&text, &sizes)?, &pool, rounds)?;
                }
            }
        }
    }
    Ok(())
}
