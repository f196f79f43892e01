//! Transposed convolutions are sums over the places of their kernels.

use crate::every_pass::verified;
use sdfg::{Container, Direction, Dtype, Expr, Fill, Op, Operand, Operation, Role, Scalar, Sdfg, Unit};
use transforms::Pass;
use transforms::algebra::transposed_windows::TransposedWindows;

fn operand(connector: &str, data: &str, subscripts: &[&str], fill: Option<f64>) -> Operand {
    let subscripts = subscripts.iter().map(|s| s.parse().expect("a subscript")).collect();
    Operand { connector: connector.into(), data: data.into(), subscripts, fill: fill.map(Fill) }
}

/// `y[o,p] = Σ k[c,o,kernel] · x[c,image]`, with `h` places of an image of 9 and kernels of 4.
fn layer(kernel: &str, image: &str, fill: f64, places: i64) -> Sdfg {
    let mut program = Sdfg::new("layer");
    for (dim, size) in [("c", 3), ("o", 2), ("h", 9), ("r", 4), ("p", places)] {
        program.dims.insert(dim.into(), Expr::sym(dim.to_uppercase()));
        program.sizes.insert(dim.to_uppercase(), size);
    }
    let all: [(&str, &[&str], Role); 3] =
        [("x", &["c", "h"], Role::Input), ("k", &["c", "o", "r"], Role::Parameter), ("y", &["o", "p"], Role::Output)];
    for (name, dims, role) in all {
        program.add_container(Container { grad: role != Role::Output, ..Container::new(name, dims, Dtype::F64, role) });
    }
    let operation = Operation {
        name: "y".into(),
        op: Op::Contraction { scale: Scalar::Const(0.5) },
        indices: ["o", "p", "c", "h"].iter().map(|i| (i.to_string(), i.to_string())).collect(),
        inputs: vec![operand("a", "k", &["c", "o", kernel], Some(fill)), operand("b", "x", &["c", image], None)],
        outputs: vec![operand("out", "y", &["o", "p"], None)],
        pass: Direction::Forward,
        origin: None,
    };
    let state = program.add_state("main");
    program.insert_operation(state, &operation).expect("an operation");
    program
}

/// Transposed convolutions of one dim: with a stride of 2, and with none.
pub fn models() -> [Sdfg; 2] {
    [layer("p + 1 - 2*h", "h", 0.0, 18), layer("p + 2 - h", "h", 0.0, 9)]
}

/// The points that all operations visit, and why operations are left.
fn after(program: &Sdfg) -> (i64, Vec<String>) {
    let outcome = verified(program, &[&TransposedWindows as &dyn Pass]).unwrap_or_else(|error| panic!("{error}"));
    let program = outcome.program;
    assert_eq!(sdfg::validate::validate(&program), vec![]);
    let points = |operation: &Operation| -> i64 {
        operation.indices.values().map(|dim| program.size_of(dim).eval(&program.sizes).expect("a size")).product()
    };
    let operations = program.units().into_iter().filter_map(|(_, _, unit)| if let Unit::Operation(o) = unit { Some(o) } else { None });
    (operations.map(|o| points(&o)).sum(), outcome.refusals.iter().map(|refusal| refusal.reason.to_string()).collect())
}

#[test]
fn a_sum_runs_over_the_kernel() {
    let [strided, plain] = models();
    // Two phases of 9 and one place more with 2 taps each, and all places once more to pick them; it was 2·18·3·9.
    assert_eq!(after(&strided).0, 2 * 3 * 2 * 2 * 10 + 2 * 18);
    assert_eq!(after(&plain).0, 2 * 3 * 9 * 4);
}

/// What a convolution with a stride gives its kernel's factor is a window, too.
#[test]
fn a_kernel_that_is_spread_is_a_window_of_its_image() {
    let program = layer("h + 3 - 2*p", "h", 0.0, 6);
    assert_eq!(after(&program).0, 2 * 3 * 6 * 4);
}

#[test]
fn what_stays_is_told_why() {
    let why = |program: &Sdfg| after(program).1.join("; ");
    assert!(why(&layer("p + 1 - 2*h", "h", 1.0, 18)).contains("another value than 0"));
    assert!(why(&layer("2*h - p + 1", "h", 0.0, 18)).contains("is turned round or dilated"));
    assert!(why(&layer("p", "h", 0.0, 4)).contains("no kernel lies at the places of an image"));
    // A kernel with more places than the image is summed over the image.
    let mut long = layer("p + 1 - h", "h", 0.0, 9);
    long.sizes.insert("R".into(), 20);
    assert!(why(&long).contains("no kernel lies at the places of an image"));
}
