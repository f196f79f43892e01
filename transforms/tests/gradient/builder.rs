//! Forward programs, built operation by operation. Dims and indices are single letters; `k` has the size of `j`.

use indexmap::IndexMap;
use sdfg::{Combine, Container, Direction, Dtype, Expr, Op, Operand, Operation, Role, Scalar, Sdfg, StateId, Unary};

pub struct Builder {
    pub program: Sdfg,
    state: StateId,
}

/// `dims` of a container or subscripts of an operand, one letter each.
fn letters(text: &str) -> Vec<String> {
    text.chars().map(String::from).collect()
}

pub fn operand(connector: &str, data: &str, subscripts: &str) -> Operand {
    let subscripts = letters(subscripts);
    Operand::new(connector, data, &subscripts.iter().map(String::as_str).collect::<Vec<_>>())
}

impl Builder {
    /// b=2, j=k=3, h=2, p=2, i=4, u=5.
    pub fn new() -> Self {
        let mut program = Sdfg::new("test");
        for (dim, symbol, size) in [("b", "B", 2), ("j", "J", 3), ("k", "J", 3), ("h", "H", 2), ("p", "P", 2), ("i", "I", 4), ("u", "U", 5)]
        {
            program.dims.insert(dim.into(), Expr::sym(symbol));
            program.sizes.insert(symbol.into(), size);
        }
        let state = program.add_state("forward");
        Builder { program, state }
    }

    pub fn declare(&mut self, name: &str, dims: &str, role: Role) {
        let dims = letters(dims);
        let dims: Vec<&str> = dims.iter().map(String::as_str).collect();
        self.program.add_container(Container::new(name, &dims, Dtype::F64, role));
    }

    pub fn input(&mut self, name: &str, dims: &str) {
        self.declare(name, dims, Role::Input);
    }

    pub fn parameter(&mut self, name: &str, dims: &str) {
        self.declare(name, dims, Role::Parameter);
    }

    pub fn operation(&mut self, name: &str, op: Op, inputs: Vec<Operand>, outputs: Vec<Operand>) {
        let mut indices = IndexMap::new();
        for operand in outputs.iter().chain(&inputs) {
            for index in operand.index_names().unwrap() {
                indices.insert(index.to_string(), index.to_string());
            }
        }
        for operand in &outputs {
            if !self.program.containers.contains_key(&operand.data) {
                let dims = operand.index_names().unwrap().concat();
                self.declare(&operand.data, &dims, Role::Transient);
            }
        }
        let operation = Operation { name: name.into(), op, indices, inputs, outputs, pass: Direction::Forward, origin: None };
        self.program.insert_operation(self.state, &operation).unwrap();
    }

    /// `out[dims] = scale · Σ a·b`; operands are written `(data, subscripts)`.
    pub fn contraction(&mut self, out: (&str, &str), a: (&str, &str), b: (&str, &str), scale: f64) {
        let inputs = vec![operand("a", a.0, a.1), operand("b", b.0, b.1)];
        self.operation(out.0, Op::Contraction { scale: Scalar::Const(scale) }, inputs, vec![operand("out", out.0, out.1)]);
    }

    /// Element-wise; an operand's connector is the name of its container.
    pub fn pointwise(&mut self, label: &str, out: (&str, &str), inputs: &[(&str, &str)], code: Scalar) {
        let inputs = inputs.iter().map(|(d, s)| operand(d, d, s)).collect();
        self.operation(out.0, Op::Elementwise { label: label.into(), code }, inputs, vec![operand("out", out.0, out.1)]);
    }

    /// `out = a + b`, a bias if `b` has fewer dims.
    pub fn add(&mut self, out: (&str, &str), a: (&str, &str), b: (&str, &str)) {
        let label = if b.1.len() < a.1.len() { "bias" } else { "residual" };
        self.pointwise(label, out, &[a, b], Scalar::input(a.0) + Scalar::input(b.0));
    }

    pub fn relu(&mut self, out: (&str, &str), x: &str) {
        let code = Scalar::binary(sdfg::Binary::Max, Scalar::input(x), Scalar::Const(0.0));
        self.pointwise("relu", out, &[(x, out.1)], code);
    }

    pub fn gelu(&mut self, out: (&str, &str), x: &str) {
        let inner = Scalar::unary(Unary::Erf, Scalar::input(x) * Scalar::Const(0.5f64.sqrt()));
        let code = Scalar::Const(0.5) * Scalar::input(x) * (Scalar::Const(1.0) + inner);
        self.pointwise("gelu", out, &[(x, out.1)], code);
    }

    pub fn dropout(&mut self, out: (&str, &str), x: &str, rate: f64) {
        let element = letters(out.1).iter().fold(Expr::Int(0), |e, d| e * self.program.size_of(d) + Expr::sym(d.as_str()));
        let keep = Scalar::Keep { stream: out.0.into(), element, rate };
        self.pointwise("dropout", out, &[(x, out.1)], Scalar::input(x) * keep);
    }

    pub fn softmax(&mut self, out: (&str, &str), x: &str, over: &str) {
        let op = Op::Softmax { over: letters(over) };
        self.operation(out.0, op, vec![operand("x", x, out.1)], vec![operand("out", out.0, out.1)]);
    }

    pub fn norm(&mut self, out: (&str, &str), x: &str, over: &str, gamma: Option<&str>, beta: Option<&str>) {
        let kept: String = out.1.chars().filter(|c| !over.contains(*c)).collect();
        let mut inputs = vec![operand("x", x, out.1)];
        inputs.extend(gamma.map(|g| operand("gamma", g, over)));
        inputs.extend(beta.map(|b| operand("beta", b, over)));
        let statistics = [format!("{}.mean", out.0), format!("{}.rstd", out.0)];
        let outputs = vec![operand("out", out.0, out.1), operand("mean", &statistics[0], &kept), operand("rstd", &statistics[1], &kept)];
        self.operation(out.0, Op::Normalize { over: letters(over), eps: 1e-5 }, inputs, outputs);
    }

    /// `out = scale · ⊕ code(inputs)`; an operand's connector is the name of its container.
    pub fn reduce(&mut self, out: (&str, &str), combine: Combine, inputs: &[(&str, &str)], code: Scalar, scale: f64) {
        let inputs = inputs.iter().map(|(d, s)| operand(d, d, s)).collect();
        let op = Op::Reduce { label: combine.name().into(), combine, code, scale: Scalar::Const(scale) };
        self.operation(out.0, op, inputs, vec![operand("out", out.0, out.1)]);
    }
}
