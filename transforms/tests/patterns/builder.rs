//! Small programs written down as kernels, and shown as text.

use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::text::{parse_scalar, print_scope};
use sdfg::{
    Combine, Computation, Container, Direction, Dtype, Expr, Fill, Index, IndexKind, Item, Memlet, Op, Operand, Operation, Origin, Role,
    Scalar, Scope, Sdfg, StateId, Tasklet, Unit,
};

pub struct Builder {
    pub program: Sdfg,
    state: StateId,
    line: u32,
}

/// `x[i,j-1]` as container and subscripts.
pub fn access(text: &str) -> (String, Vec<Expr>) {
    let (data, rest) = text.split_once('[').expect("an access");
    let inside = rest.trim_end_matches(']');
    let subscripts = inside.split(',').filter(|s| !s.is_empty()).map(|s| s.trim().parse().expect("a subscript"));
    (data.to_string(), subscripts.collect())
}

/// An operand: `x[2*p+r-1 else 0]` reads 0 outside.
fn operand(connector: &str, text: &str) -> Operand {
    let (text, fill) = match text.split_once(" else ") {
        Some((text, fill)) => (text, Some(fill.trim_end_matches(']').parse().expect("a fill"))),
        None => (text, None),
    };
    let (data, subscripts) = access(text);
    Operand { connector: connector.into(), data, subscripts, fill: fill.map(Fill) }
}

impl Builder {
    /// Containers as `x[i,j]`: inputs, transients, outputs. Sizes: i=3, j=4, k=5, of one letter each.
    pub fn new(inputs: &[&str], transients: &[&str], outputs: &[&str]) -> Self {
        let mut program = Sdfg::new("pattern");
        for (dim, size) in [("i", 3), ("j", 4), ("k", 5)] {
            program.dims.insert(dim.into(), Expr::sym(dim));
            program.sizes.insert(dim.into(), size);
        }
        for (role, names) in [(Role::Input, inputs), (Role::Transient, transients), (Role::Output, outputs)] {
            for name in names {
                let (data, dims) = access(name);
                let dims: Vec<String> = dims.iter().map(Expr::to_string).collect();
                let dims: Vec<&str> = dims.iter().map(String::as_str).collect();
                program.add_container(Container::new(data, &dims, Dtype::F64, role));
            }
        }
        let state = program.add_state("forward");
        Builder { program, state, line: 0 }
    }

    fn origin(&mut self) -> Option<Origin> {
        self.line += 1;
        Some(Origin { file: "pattern.yaml".into(), line: self.line, column: 3 })
    }

    /// A kernel of one tasklet: `out = code` over indices, `a`, `b`, … in the code being the reads in order.
    pub fn map(self, name: &str, indices: &[&str], out: &str, code: &str, reads: &[&str]) -> Self {
        self.kernel(name, indices, out, None, code, reads)
    }

    /// The same, summed over the indices that `out` lacks.
    pub fn sum(self, name: &str, indices: &[&str], out: &str, code: &str, reads: &[&str]) -> Self {
        self.kernel(name, indices, out, Some(Combine::Sum), code, reads)
    }

    pub fn kernel(mut self, name: &str, indices: &[&str], out: &str, combine: Option<Combine>, code: &str, reads: &[&str]) -> Self {
        let (data, subscripts) = access(out);
        let kept: Vec<String> = subscripts.iter().flat_map(Expr::symbols).collect();
        let kind = |i: &str| if kept.iter().any(|k| k == i) { IndexKind::Independent } else { IndexKind::Reduction };
        let indices = indices.iter().map(|i| Index::over(*i, *i, self.program.size_of(i), kind(i))).collect();
        let read = |(n, text): (usize, &&str)| {
            let (data, subscripts) = access(text);
            let shifted = subscripts.iter().any(|s| s.as_sym().is_none());
            let memlet = Memlet { fill: shifted.then_some(0.0), ..Memlet::at(data, subscripts) };
            (char::from(b'a' + n as u8).to_string(), memlet)
        };
        let origin = self.origin();
        let tasklet =
            Tasklet { name: name.into(), code: vec![("out".into(), parse_scalar(code).expect("code"))], operator: name.into(), origin };
        let writes = vec![("out".into(), Memlet::at(data, subscripts).with_wcr(combine))];
        let computation = Computation { tasklet, reads: reads.iter().enumerate().map(read).collect(), writes };
        let scope = Scope::new(name, indices, vec![Item::Tasklet(computation)]);
        self.program.insert_scope(self.state, &scope).expect("a scope");
        self
    }

    /// Other sizes, and dims beyond i, j and k.
    pub fn sized(mut self, sizes: &[(&str, i64)]) -> Self {
        for (dim, size) in sizes {
            self.program.dims.insert(dim.to_string(), Expr::sym(*dim));
            self.program.sizes.insert(dim.to_string(), *size);
        }
        self
    }

    /// The same, with sizes named in upper case, so that no index is called as a size.
    pub fn upper(mut self, sizes: &[(&str, i64)]) -> Self {
        for (dim, size) in sizes {
            self.program.dims.insert(dim.to_string(), Expr::sym(dim.to_uppercase()));
            self.program.sizes.insert(dim.to_uppercase(), *size);
        }
        self
    }

    /// An element-wise operation whose indices are called as the dims that they run along; `a`, `b`, … in the code are the reads in order.
    pub fn pointwise(mut self, name: &str, indices: &[&str], out: &str, code: &str, reads: &[&str]) -> Self {
        let inputs = reads.iter().enumerate().map(|(n, text)| operand(&char::from(b'a' + n as u8).to_string(), text)).collect();
        let operation = Operation {
            name: name.into(),
            op: Op::Elementwise { label: "map".into(), code: parse_scalar(code).expect("code") },
            indices: indices.iter().map(|i| (i.to_string(), i.to_string())).collect(),
            inputs,
            outputs: vec![operand("out", out)],
            pass: Direction::Forward,
            origin: self.origin(),
        };
        self.program.insert_operation(self.state, &operation).expect("an operation");
        self
    }

    /// `out = Σ a·b` over the indices that `out` lacks.
    pub fn contraction(self, name: &str, indices: &[&str], out: &str, a: &str, b: &str) -> Self {
        self.scaled_contraction(name, indices, out, a, b, Scalar::Const(1.0))
    }

    /// The same, times a scale.
    pub fn scaled_contraction(mut self, name: &str, indices: &[&str], out: &str, a: &str, b: &str, scale: Scalar) -> Self {
        let operation = Operation {
            name: name.into(),
            op: Op::Contraction { scale },
            indices: indices.iter().map(|i| (i.to_string(), i.to_string())).collect(),
            inputs: vec![operand("a", a), operand("b", b)],
            outputs: vec![operand("out", out)],
            pass: Direction::Forward,
            origin: self.origin(),
        };
        self.program.insert_operation(self.state, &operation).expect("an operation");
        self
    }
}

pub fn kernels(program: &Sdfg) -> String {
    let show = |unit: Unit| match unit {
        Unit::Scope(scope) => print_scope(&scope),
        other => format!("{}\n", other.name()),
    };
    program.units().into_iter().map(|(_, _, unit)| show(unit)).collect()
}

/// Lines without the indentation that they all share.
pub fn flush(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    let margin = lines.iter().map(|l| l.len() - l.trim_start().len()).min().unwrap_or(0);
    lines.into_iter().map(|l| format!("{}\n", &l[margin..])).collect()
}

pub fn results(program: &Sdfg) -> Tensors {
    let drawn = |c: &Container| {
        let shape = program.shape_of(&c.name).expect("sizes");
        let values = sdfg::random::tensor(7, &c.name, shape.iter().product());
        (c.name.clone(), ArrayD::from_shape_vec(IxDyn(&shape), values).expect("a shape"))
    };
    let inputs = program.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter)).map(drawn).collect();
    interpret(program, &inputs, &Run { seed: 1, step: 0, dropout: true }).expect("a run")
}
