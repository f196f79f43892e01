//! Kernels that lie at the places of an image, read as windows of that image.
//!
//! ```text
//! y[p] = Σ_h k[p + 1 - h else 0] · x[h]        →    y[p] = Σ_r k[r] · x[p + 1 - r else 0]
//! d[h] = Σ_p k[p + 1 - 2·h else 0] · e[p]      →    d[h] = Σ_r k[r] · e[r + 2·h - 1 else 0]
//! y[p] = Σ_h k[p + 1 - 2·h else 0] · x[h]      →    z[f,w] = Σ_t k[2·t + f else 0] · x[w - t else 0]
//!                                                   y[p] = z[(p + 1) mod 2, floor((p + 1)/2)]
//! ```
//!
//! Transposed convolutions are written so, and the gradients of convolutions with strides by their images. A sum over the image visits
//! every place of it for every place of the result, though only those under the kernel count.
//!
//! *Legal when* the index that is summed subscripts one axis of each factor, the whole of it in the image, and stands nowhere else; what
//! lies outside is 0 in both. With a stride, the index of the result stands in no other subscript of the factors.
//! *Computes less because* a sum has as many terms as the kernel has places, and with a stride `s` one in `s` of these. With a stride it
//! moves the result twice more, as phases.
//! *Not handled*: kernels that are turned round or dilated while they lie with a stride; programs with loops.
//! Source: Dumoulin and Visin, "A guide to convolution arithmetic for deep learning" (2016), section 4; phases: Shi et al., CVPR 2016.

use crate::pass::{Context, Pass, Rewritten, Stopped, refused_at};
use sdfg::affine::Affine;
use sdfg::library::WantedGradients;
use sdfg::{Container, Expr, Fill, Op, Operand, Operation, Sdfg, Unit};
use std::collections::BTreeMap;

/// Sums over windows what is summed over an image.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransposedWindows;

impl Pass for TransposedWindows {
    fn name(&self) -> &'static str {
        "transposed windows"
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let (mut found, mut refused) = (BTreeMap::new(), vec![]);
        for (_, _, unit) in program.units() {
            let Unit::Operation(operation) = unit else { continue };
            match Transposed::of(&operation, program).map(|t| t.map(|t| t.rewritten(program)).transpose()) {
                Ok(Ok(Some(made))) => _ = found.insert(operation.name.clone(), made),
                Ok(Ok(None)) => {}
                Ok(Err(why)) | Err(why) => refused.push((operation, why)),
            }
        }
        if found.is_empty() {
            let refused = refused.iter().map(|(operation, why)| (operation, why.clone()));
            return Err(refused_at(self.name(), program, refused, "no kernel lies at the places of an image"));
        }
        let names: Vec<String> = found.keys().map(|name| format!("`{name}`")).collect();
        let mut result = program.clone();
        for (state, _) in program.states() {
            result.map_operations(state, |result, operation| match found.remove(&operation.name) {
                None => vec![operation],
                Some(made) => made.declared(result),
            })?;
        }
        Ok(Rewritten::program(format!("a window for the image in {}", names.join(", ")), result))
    }
}

/// A contraction of which one factor, the kernel, is read where the other, the image, is not.
struct Transposed<'a> {
    operation: &'a Operation,
    scale: &'a sdfg::Scalar,
    kernel: &'a Operand,
    kernel_container: &'a Container,
    image: &'a Operand,
    axes: Vec<KernelAxis>,
}

/// An axis of the kernel: its subscript is `by · summed + rest`.
struct KernelAxis {
    /// Its number among the kernel's axes, and that of the image along which the summed index runs.
    kernel: usize,
    image: usize,
    summed: String,
    by: i64,
    rest: Affine,
    /// The index over the kernel's own places.
    tap: String,
}

/// What stands for one operation.
struct Rewrite {
    operations: Vec<Operation>,
    containers: Vec<Container>,
    dims: Vec<(String, Expr)>,
}

impl Rewrite {
    fn declared(self, program: &mut Sdfg) -> Vec<Operation> {
        program.dims.extend(self.dims);
        self.containers.into_iter().for_each(|container| program.add_container(container));
        self.operations
    }
}

impl<'a> Transposed<'a> {
    /// `None` where an operation is none, or where the kernel has no fewer places than the image.
    ///
    /// # Errors
    /// Why a kernel at the places of an image must stay one.
    fn of(operation: &'a Operation, program: &'a Sdfg) -> Result<Option<Transposed<'a>>, String> {
        let (Op::Contraction { scale }, [a, b]) = (&operation.op, operation.inputs.as_slice()) else { return Ok(None) };
        for (kernel, image) in [(a, b), (b, a)] {
            let Some(container) = program.containers.get(&kernel.data) else { continue };
            let mut transposed = Transposed { operation, scale, kernel, kernel_container: container, image, axes: vec![] };
            for at in 0..kernel.subscripts.len() {
                let axis = transposed.axis(at, program);
                transposed.axes.extend(axis);
            }
            if transposed.axes.is_empty() || !transposed.pays(program) {
                continue;
            }
            if ![kernel, image].iter().all(|factor| factor.fill.is_none_or(|fill| fill == Fill(0.0))) {
                return Err("outside of a factor lies another value than 0".into());
            }
            return Ok(Some(transposed));
        }
        Ok(None)
    }

    /// The axis of the kernel, if it is read at places that an index of the image moves.
    fn axis(&self, at: usize, program: &Sdfg) -> Option<KernelAxis> {
        let operation = self.operation;
        let form = Affine::of(&self.kernel.subscripts[at], &|name| operation.indices.contains_key(name))?;
        let written = |index: &str| operation.outputs.iter().any(|out| mentions(out, index) > 0);
        let (summed, by, image) = form.terms.iter().find_map(|(index, by)| {
            let image = self.image.subscripts.iter().position(|e| e.as_sym() == Some(index))?;
            let once = mentions(self.image, index) == 1 && mentions(self.kernel, index) == 1;
            let dim = program.containers.get(&self.image.data)?.dims.get(image)?;
            let whole = program.size_of(operation.indices.get(index)?) == program.size_of(dim);
            (once && whole && !written(index)).then(|| (index.clone(), *by, image))
        })?;
        let rest = form.without(&summed);
        let moved = !rest.terms.is_empty();
        let dim = self.kernel_container.dims.get(at)?;
        let taken = |name: &str| operation.indices.contains_key(name) || self.axes.iter().any(|axis| axis.tap == name);
        let tap = std::iter::once(dim.clone()).chain((2..).map(|n| format!("{dim}_{n}"))).find(|name| !taken(name))?;
        moved.then_some(KernelAxis { kernel: at, image, summed, by, rest, tap })
    }

    /// Whether windows have fewer places than the image.
    fn pays(&self, program: &Sdfg) -> bool {
        let size = |dim: &str| program.size_of(dim).eval(&program.sizes).unwrap_or(1).max(1);
        let (mut before, mut after) = (1i64, 1i64);
        for axis in &self.axes {
            let taps = size(&self.kernel_container.dims[axis.kernel]);
            before = before.saturating_mul(self.operation.indices.get(&axis.summed).map_or(1, |dim| size(dim)));
            after = after.saturating_mul((taps + axis.by.abs() - 1) / axis.by.abs());
        }
        after < before
    }

    fn rewritten(&self, program: &Sdfg) -> Result<Rewrite, String> {
        if self.axes.iter().all(|axis| axis.by.abs() == 1) {
            return self.windows().ok_or_else(|| "a coefficient of a subscript is too large".into());
        }
        self.phases(program)
    }

    /// The kernel at its own places.
    fn own_kernel(&self) -> Operand {
        let mut kernel = self.kernel.clone();
        for axis in &self.axes {
            kernel.subscripts[axis.kernel] = Expr::sym(axis.tap.as_str());
        }
        let plain = kernel.subscripts.iter().all(|e| e.as_sym().is_some());
        kernel.fill = kernel.fill.filter(|_| !plain);
        kernel
    }

    /// The indices, with some left out, and those of the kernel's places behind them.
    fn indices(&self, without: &dyn Fn(&str) -> bool) -> indexmap::IndexMap<String, String> {
        let kept = self.operation.indices.iter().filter(|(index, _)| !without(index)).map(|(i, d)| (i.clone(), d.clone()));
        kept.chain(self.axes.iter().map(|axis| (axis.tap.clone(), self.kernel_container.dims[axis.kernel].clone()))).collect()
    }

    /// The index of the image is that of the kernel and what else stands in its subscript: `h = ±(r - rest)`.
    fn windows(&self) -> Option<Rewrite> {
        let mut image = self.image.clone();
        for axis in &self.axes {
            let tap = Affine { terms: vec![(axis.tap.clone(), 1)], offset: Expr::Int(0) };
            image.subscripts[axis.image] = tap.plus(axis.rest.clone(), -1)?.times(axis.by)?.expr();
        }
        image.fill = Some(Fill(0.0));
        let kernel = self.own_kernel();
        let inputs = self.operation.inputs.iter().map(|input| match input.connector == kernel.connector {
            true => kernel.clone(),
            false => image.clone(),
        });
        let indices = self.indices(&|index| self.axes.iter().any(|axis| axis.summed == index));
        let operation = Operation { inputs: inputs.collect(), indices, ..self.operation.clone() };
        Some(Rewrite { operations: vec![operation], containers: vec![], dims: vec![] })
    }

    /// The result is the gradient, by its image, of the convolution that the kernel belongs to: that is taken apart into phases.
    fn phases(&self, program: &Sdfg) -> Result<Rewrite, String> {
        let [out] = self.operation.outputs.as_slice() else { return Err("it has several results".into()) };
        let mut convolved = out.like("b", &out.data);
        for axis in &self.axes {
            let [(place, 1)] = axis.rest.terms.as_slice() else {
                return Err(format!("the kernel `{}` is turned round or dilated, and lies with a stride", self.kernel.data));
            };
            let once = mentions(self.kernel, place) == 1 && mentions(self.image, place) == 0 && mentions(out, place) == 1;
            let at = convolved.subscripts.iter().position(|e| e.as_sym() == Some(place)).filter(|_| once && axis.by < 0);
            let at = at.ok_or_else(|| format!("`{place}` subscripts more than the kernel `{}` and the result", self.kernel.data))?;
            let window = Affine { terms: vec![(axis.summed.clone(), -axis.by), (axis.tap.clone(), 1)], offset: Expr::Int(0) };
            let offset = Affine { terms: vec![], offset: axis.rest.offset.clone() };
            convolved.subscripts[at] = window.plus(offset, -1).ok_or("a coefficient of a subscript is too large")?.expr();
        }
        convolved.fill = Some(Fill(0.0));
        let names = self.image.index_names().filter(|names| names.iter().enumerate().all(|(n, name)| !names[..n].contains(name)));
        if names.is_none() || self.image.fill.is_some() {
            return Err(format!("`{}` is read at other places than plain indices", self.image.data));
        }
        let placed = |index: &str| self.axes.iter().any(|axis| axis.rest.coefficient(index) != 0);
        let convolution = Operation {
            inputs: vec![self.own_kernel().like("a", &self.kernel.data), convolved],
            outputs: vec![self.image.like("out", &self.image.data)],
            indices: self.indices(&placed),
            op: Op::Contraction { scale: self.scale.clone() },
            ..self.operation.clone()
        };
        let wanted = WantedGradients {
            gradients: BTreeMap::from([("b".to_string(), out.data.clone())]),
            parts: Default::default(),
            upstream: self.image.data.clone(),
        };
        let derivative = convolution.differentiate(program, &wanted).map_err(|e| e.to_string())?;
        let mut operations = derivative.operations;
        for made in &mut operations {
            made.pass = self.operation.pass;
            if made.name == out.data {
                made.name = self.operation.name.clone();
            }
        }
        Ok(Rewrite { operations, containers: derivative.containers, dims: derivative.dims })
    }
}

/// How many subscripts of an operand mention an index.
fn mentions(operand: &Operand, index: &str) -> usize {
    operand.subscripts.iter().filter(|e| e.symbols().contains(index)).count()
}
