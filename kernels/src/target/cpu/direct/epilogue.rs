//! What follows a direct product element by element: computed by the micro-kernel, from the sums that it has in registers.

use super::product_axis::ProductAxis;
use crate::emit::printer::PrintedLoops;
use crate::emit::scalar::value;
use crate::loopnest::{Element, LoopGroup, MemorySpace, NestStatement, slope};
use crate::target::cpu::dialect::CPrinter;
use sdfg::{Combine, Dtype, Scalar};

/// An element that a micro-kernel reads or writes for each of its sums, by the number of a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    pub element: Element,
    pub is_written: bool,
}

/// Statements on single elements after a product.
#[derive(Clone, Debug)]
pub struct DirectEpilogue {
    /// Of each a pointer is given.
    pub touched: Vec<Touched>,
    /// C of the statements: `sum` is the product's result, and `t0[o0]` the first element touched.
    pub text: String,
}

impl CPrinter<'_> {
    /// Notes the indices that lanes of vectors walk, for a product and what its micro-kernels make of the sums.
    pub(super) fn tell_lanes(&mut self, out: &Element, epilogue: Option<&DirectEpilogue>, lanes: &ProductAxis) {
        let written = epilogue.iter().flat_map(|e| &e.touched).filter(|t| t.is_written).map(|t| t.element.data.clone());
        let writes = [out.data.clone()].into_iter().chain(written).collect();
        self.loops.push(PrintedLoops { writes, lanes: lanes.indices.clone(), packed: None });
    }

    /// The group after a product, if it does nothing but make elements in memory from the product's sums, one from each.
    pub fn epilogue(&mut self, product: &LoopGroup, next: &LoopGroup) -> Option<DirectEpilogue> {
        let sum = &product.statements.first()?.write;
        let same = |a: &LoopGroup, b: &LoopGroup| a.loops.iter().all(|l| b.loops.iter().any(|k| k.index == l.index && k.count == l.count));
        let own = |index: &str| sum.subscripts.iter().any(|e| e.as_sym() == Some(index));
        let walked = |index: &str| next.loops.iter().any(|l| l.index == index);
        let all_walked = product.loops.iter().all(|l| l.count == 1 || !own(&l.index) || walked(&l.index));
        let whole = all_walked && next.loops.iter().all(|l| l.count == 1 || own(&l.index)) && same(next, product);
        let local = self.tensor(&sum.data).ok()?.space == MemorySpace::Local;
        let all = || self.nest.groups.iter().flat_map(|g| &g.statements);
        let elsewhere = all().filter(|s| !next.statements.iter().any(|n| std::ptr::eq(n, *s)));
        let kept = elsewhere.flat_map(|s| &s.reads).any(|(_, e)| e.data == sum.data);
        let made: Vec<&str> = next.statements.iter().map(|s| s.write.data.as_str()).chain([sum.data.as_str()]).collect();
        // What other tiles of the product still read must not be written over.
        let owner = |data: &str| self.nest.reuses.get(data).cloned().unwrap_or_else(|| data.to_string());
        let factors: Vec<String> = product.statements.iter().flat_map(|s| &s.reads).map(|(_, e)| owner(&e.data)).collect();
        let kept = kept || next.statements.iter().any(|s| factors.contains(&owner(&s.write.data)));
        if next.is_gemm || next.last || !whole || !local || kept || all().filter(|s| s.write.data == sum.data).count() != 1 {
            return None;
        }
        let (mut touched, mut text, mut known): (Vec<Touched>, String, Vec<(Element, String)>) = Default::default();
        known.push((sum.clone(), "sum".into()));
        for statement in &next.statements {
            self.plain(statement)?;
            self.connectors.clear();
            for (connector, element) in &statement.reads {
                let name = match known.iter().find(|(e, _)| e == element) {
                    Some((_, name)) => name.clone(),
                    None => self.given_element(element, next, &made).map(|()| {
                        touched.push(Touched { element: element.clone(), is_written: false });
                        let n = touched.len() - 1;
                        known.push((element.clone(), format!("x{n}")));
                        text += &format!("const real x{n} = t{n}[o{n}];\n");
                        format!("x{n}")
                    })?,
                };
                self.connectors.insert(connector.clone(), name);
            }
            let made = value(&statement.code, self);
            let name = format!("v{}", known.len());
            text += &format!("const real {name} = {made};\n");
            let tensor = self.tensor(&statement.write.data).ok()?;
            let in_memory = match tensor.space {
                MemorySpace::Heap { .. } => true,
                MemorySpace::Local => tensor.stored && !tensor.shape.is_empty(),
                _ => return None,
            };
            if in_memory {
                self.affine(&statement.write, next)?;
                let n = touched.len();
                touched.push(Touched { element: statement.write.clone(), is_written: true });
                text += &format!("t{n}[o{n}] = {name};\n");
            }
            known.push((statement.write.clone(), name));
        }
        (text.contains("] = ")).then_some(DirectEpilogue { touched, text })
    }

    /// Whether a statement makes one element from others, by arithmetic alone.
    fn plain(&self, statement: &NestStatement) -> Option<()> {
        let none: Option<Combine> = None;
        let mut plain = statement.combine == none;
        statement.code.walk(&mut |s| plain &= !matches!(s, Scalar::Keep { .. } | Scalar::Kept { .. } | Scalar::Index(_)));
        let real = |e: &Element| {
            self.tensor(&e.data).is_ok_and(|t| matches!(t.dtype, Dtype::F32 | Dtype::F64) && (t.dtype == Dtype::F64) == self.double)
        };
        (plain && real(&statement.write) && statement.reads.iter().all(|(_, e)| real(e))).then_some(())
    }

    /// Whether an element is in memory, and no statement of the group writes what it may be.
    fn given_element(&self, element: &Element, group: &LoopGroup, made: &[&str]) -> Option<()> {
        let heap = |data: &str| match self.nest.tensors.get(data).map(|t| &t.space) {
            Some(MemorySpace::Heap { root, .. }) => Some(root.clone()),
            _ => None,
        };
        let written = match heap(&element.data) {
            Some(root) => made.iter().any(|data| heap(data).as_ref() == Some(&root)),
            // Of what this worker has made before.
            None => {
                !self.tensor(&element.data).is_ok_and(|t| t.space == MemorySpace::Local && t.stored && !t.shape.is_empty())
                    || made.contains(&element.data.as_str())
            }
        };
        (!written && element.fill.is_none()).then_some(())?;
        self.affine(element, group)
    }

    fn affine(&self, element: &Element, group: &LoopGroup) -> Option<()> {
        let linear = |index: &str| element.subscripts.iter().all(|e| slope(e, index).is_some());
        group.loops.iter().all(|l| linear(&l.index)).then_some(())
    }
}
