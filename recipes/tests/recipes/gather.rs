//! Rows that a tensor names: gathers, their gradients, and tables that are updated row by row.

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::{KernelSpec, Toolchain};
use ndarray::{Array1, Array2, ArrayD};
use recipes::load::load_str;
use recipes::pipeline::oracle::tensors::{next_step, random_inputs};
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use sdfg::config::Configuration;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Op, Sdfg, Unit};
use std::sync::Arc;
use transforms::verify::gradients::{Differences, check_gradients};

type Failure = Box<dyn std::error::Error>;

const RUN: Run = Run { seed: 1, step: 0, dropout: true };

/// Two reads of one table, with rows that both of them and each of them names twice.
fn recipe(rest: &str) -> String {
    format!(
        "model: m\ndims: {{v: 7, d: 40, b: 5, s: 3}}\ndtype: f64\ninputs:\n  x: {{dims: [b], dtype: i32}}\n  y: {{dims: [s], dtype: i64}}\n  \
         k: {{dims: [b, d], grad: false}}\nparameters:\n  e: [v, d]\nsteps:\n  - \"one[b,d] = e[x[b],d] * k[b,d]\"\n  \
         - \"loss[] = sum(one * one, over: [b, d]) + sum(e[y[s],d] * e[y[s],d], over: [s, d])\"\n{rest}"
    )
}

fn given() -> (Tensors, [Vec<usize>; 2], Array2<f64>, Array2<f64>) {
    let matrix = |name: &str, rows| Array2::from_shape_vec((rows, 40), sdfg::random::tensor(5, name, rows * 40)).expect("a matrix");
    let (x, y) = (vec![2, 0, 2, 6, 2], vec![6, 1, 6]);
    let (e, k) = (matrix("e", 7), matrix("k", 5));
    let numbers = |rows: &[usize]| Array1::from_iter(rows.iter().map(|r| *r as f64)).into_dyn();
    let tensors = [("x", numbers(&x)), ("y", numbers(&y)), ("k", k.clone().into_dyn()), ("e", e.clone().into_dyn())];
    (tensors.map(|(name, tensor)| (name.to_string(), tensor)).into(), [x, y], e, k)
}

/// The gradient of the table by hand.
fn by_hand([x, y]: &[Vec<usize>; 2], e: &Array2<f64>, k: &Array2<f64>) -> Array2<f64> {
    let mut gradient = Array2::zeros((7, 40));
    for d in 0..40 {
        for (b, row) in x.iter().enumerate() {
            gradient[[*row, d]] += 2.0 * e[[*row, d]] * k[[b, d]] * k[[b, d]];
        }
        for row in y {
            gradient[[*row, d]] += 2.0 * e[[*row, d]];
        }
    }
    gradient
}

fn executed(program: &Sdfg, tensors: &Tensors, workers: usize, steps: usize) -> Result<(Tensors, Vec<String>), Failure> {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    let cores: Arc<dyn Device> = Arc::new(Cores { toolchain: Toolchain { cache: cache.into(), ..Toolchain::system()? } });
    let mut configuration = Configuration::default();
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(program, &unit)?;
        configuration.kernels.insert(spec.name.clone(), cores.space(&spec)?.config(0));
    }
    let mut execution = Execution::new(program, &configuration, &cores)?;
    execution.load(tensors)?;
    for _ in 0..steps {
        execution.step(&Pool::new(workers)?, 1, 0, true)?;
    }
    let how = execution.replaced.iter().map(|r| format!("{}: {}", r.parameter, r.how)).collect();
    Ok((execution.results()?, how))
}

fn close(got: &ArrayD<f64>, want: &Array2<f64>, what: &str) {
    let off = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(got.len() == want.len() && off < 1e-12, "{what} is off by {off:e}");
}

#[test]
fn gradients_of_tables_add_up_rows_that_are_named_twice() -> Result<(), Failure> {
    let (tensors, rows, e, k) = given();
    let want = by_hand(&rows, &e, &k);
    let programs = programs(&load_str("m.yaml", &recipe("train: {loss: loss}\n"), &[])?, true)?;
    close(&interpret(&programs.operators, &tensors, &RUN)?["d_e"], &want, "the interpreter's gradient");
    let all = [&programs.unfused].into_iter().chain(programs.variants.iter().map(|variant| &variant.program));
    for program in all {
        close(&interpret(program, &tensors, &RUN)?["d_e"], &want, "the gradient of the expanded program");
        let (one, _) = executed(program, &tensors, 1, 1)?;
        let (two, _) = executed(program, &tensors, 2, 1)?;
        close(&one["d_e"], &want, "the kernels' gradient");
        assert_eq!(one["d_e"], two["d_e"], "sums do not depend on the number of threads");
    }
    Ok(())
}

#[test]
fn a_table_is_updated_in_place_and_row_by_row() -> Result<(), Failure> {
    let (tensors, rows, mut e, k) = given();
    for _ in 0..3 {
        e = &e - 0.01 * by_hand(&rows, &e, &k);
    }
    let programs = programs(&load_str("m.yaml", &recipe("train: {loss: loss}\nupdate: \"sgd(rate: 0.01)\"\n"), &[])?, true)?;
    let scatters =
        programs.operators.units().into_iter().filter(|(_, _, u)| matches!(u, Unit::Operation(o) if matches!(o.op, Op::Scatter { .. })));
    assert_eq!(scatters.count(), 1, "both reads of the table are one update");
    assert!(!programs.operators.containers.contains_key("d_e"), "no gradient of all rows is made");
    let (mut at, mut results) = (tensors.clone(), Tensors::new());
    for _ in 0..3 {
        results = interpret(&programs.operators, &at, &RUN)?;
        at = next_step(&programs.operators, &at, &results);
    }
    close(&results["e.new"], &e, "the interpreter's table");
    for program in [&programs.unfused].into_iter().chain(programs.variants.iter().map(|variant| &variant.program)) {
        let (got, how) = executed(program, &tensors, 2, 3)?;
        close(&got["e.new"], &e, "the kernels' table");
        assert_eq!(how, ["e: in place"]);
    }
    Ok(())
}

#[test]
fn gradients_equal_differences_also_where_rows_are_computed() -> Result<(), Failure> {
    let computed = "model: m\ndims: {b: 4, c: 6, d: 3}\ndtype: f64\ninputs:\n  s: {dims: [b, c], grad: false}\nparameters:\n  e: [c, d]\n  g: [d]\n\
                    steps:\n  - \"best[b] = argmax(s, over: c)\"\n  - \"y[b,d] = tanh(e[best[b],d] * g[d])\"\ntrain: {upstream: y}\n";
    for text in [computed.to_string(), recipe("train: {loss: loss}\n")] {
        let recipe = load_str("m.yaml", &text, &[])?;
        let both = programs(&recipe, false)?.operators;
        let given = random_inputs(&both, 3)?;
        let train = recipe.train.clone().ok_or("it trains")?;
        let options = transforms::differentiate::Options { upstream: train.upstream, loss: train.loss, ..Default::default() };
        let gradients = interpret(&both, &given, &RUN)?;
        check_gradients(&recipe.program, &options, &given, &gradients, &Differences { random: 2, single: 6 }, &RUN)?;
    }
    Ok(())
}

#[test]
fn a_row_that_a_table_lacks_has_its_place() -> Result<(), Failure> {
    let (mut tensors, ..) = given();
    let program = programs(&load_str("m.yaml", &recipe(""), &[])?, false)?.unfused;
    tensors.get_mut("x").ok_or("rows")?[[3]] = 9.0;
    let said = interpret(&program, &tensors, &RUN).expect_err("there is no row 9").to_string();
    assert!(said.contains("e[x[b], d]") && said.contains("b=3") && said.contains("is 9"), "{said}");
    let said = executed(&program, &tensors, 2, 1).expect_err("there is no row 9").to_string();
    assert!(said.contains("`x`[3] is 9, which names no row of `e`; its rows are 0 to 6"), "{said}");
    Ok(())
}

/// Rows that a step computes: a kernel says so as the interpreter does.
#[test]
fn a_computed_row_that_a_table_lacks_has_its_place() -> Result<(), Failure> {
    let text = "model: m\ndims: {t: 4, b: 3, o: 5, d: 20}\ndtype: f64\ninputs:\n  x: {dims: [t, b], grad: false}\nparameters:\n  e: [o, d]\n\
                steps:\n  - \"at[t,b] = y[t-1,b else 0] + x[t,b]\"\n  - \"row[t,b,d] = e[at[t,b],d]\"\n  \
                - \"y[t,b] = 0 * sum(row[t,b,d], over: d)\"\noutputs: [y]\n";
    let programs = programs(&load_str("m.yaml", text, &[])?, false)?;
    let mut x = Array2::zeros((4, 3));
    x[[2, 1]] = 4.0;
    let e = Array2::ones((5, 20)).into_dyn();
    let mut given: Tensors = [("x".to_string(), x.clone().into_dyn()), ("e".to_string(), e)].into();
    for program in [&programs.unfused].into_iter().chain(programs.variants.iter().map(|variant| &variant.program)) {
        given.insert("x".into(), x.clone().into_dyn());
        assert!(executed(program, &given, 2, 1)?.0["y"].iter().all(|v| *v == 0.0));
        for (wrong, shown) in [(5.0, "5"), (0.5, "0.5"), (-1.0, "-1"), (f64::INFINITY, "inf"), (f64::NAN, "NaN")] {
            given.get_mut("x").ok_or("x")?[[2, 1]] = wrong;
            let said = executed(program, &given, 2, 1).expect_err(shown).to_string();
            assert!(said.contains(&format!("[1] is {shown}, which names no row of `e`; its rows are 0 to 4")), "{said}");
            assert!(interpret(program, &given, &RUN).is_err());
        }
    }
    Ok(())
}

#[test]
fn no_gradient_goes_through_a_constant() -> Result<(), Failure> {
    let text = "model: m\ndims: {b: 4}\ndtype: f64\ninputs: {x: [b]}\nsteps:\n  - \"y[b] = stop_gradient(x * x) * x + stop_gradient(x)\"\n\
                train: {upstream: y}\n";
    let program = programs(&load_str("m.yaml", text, &[])?, true)?.unfused;
    let x = ndarray::arr1(&[1.0, -2.0, 0.5, 3.0]).into_dyn();
    let ones = ndarray::arr1(&[1.0; 4]).into_dyn();
    let results = interpret(&program, &[("x".into(), x.clone()), ("d_y".into(), ones)].into(), &RUN)?;
    assert_eq!(results["y"], &x * &x * &x + &x);
    assert_eq!(results["d_x"], &x * &x);
    Ok(())
}
