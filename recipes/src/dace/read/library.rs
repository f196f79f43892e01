//! Library nodes as sums.

use super::evaluate;
use super::frame::SdfgFrame;
use super::graph::DataflowEdge;
use super::integer::{AffineInteger, Id};
use super::python;
use super::reader::{Reader, Subset};
use super::slot::{SlotRef, UnreadReason, Write, stop};
use super::state::{Leaving, StateWalk};
use super::value::{BinaryOperator, ReductionOperator, Value};
use indexmap::IndexMap;
use serde_json::Value as Json;

type Done<T> = Result<T, UnreadReason>;

/// A part of a container that a node reads or writes.
#[derive(Clone)]
struct Part {
    slot: SlotRef,
    subset: Subset,
    /// Axes that are meant, by their sizes: all of them, or those that are not 1.
    kept: Vec<usize>,
}

impl Part {
    fn counts(&self) -> Vec<i64> {
        self.kept.iter().map(|n| self.subset.counts[*n]).collect()
    }

    fn squeezed(mut self) -> Part {
        self.kept.retain(|n| self.subset.counts[*n] != 1);
        self
    }

    /// The place of a point that counts along the axes that are meant.
    fn at(&self, points: &[AffineInteger]) -> Vec<AffineInteger> {
        let mut all = vec![AffineInteger::number(0); self.subset.begins.len()];
        for (n, point) in self.kept.iter().zip(points) {
            all[*n] = point.clone();
        }
        self.subset.at(&all)
    }
}

impl Reader {
    pub(super) fn library<'g>(
        &mut self,
        frame: &mut SdfgFrame<'g>,
        walk: &mut StateWalk<'g>,
        n: usize,
        class: &str,
        about: &Json,
    ) -> Done<Vec<Leaving>> {
        match class {
            "MatMul" | "Gemm" | "BatchedMatMul" | "Gemv" | "Dot" | "Ger" => self.product(frame, walk, n, class, about),
            "Einsum" => self.einsum(frame, walk, n, about),
            "TensorDot" => self.tensordot(frame, walk, n, about),
            "Reduce" => self.reduction(frame, walk, n, about),
            "Transpose" | "TensorTranspose" => self.transposition(frame, walk, n, class, about),
            "Axpy" => self.axpy(frame, walk, n, about),
            "CopyLibraryNode" => self.elementwise(frame, walk, n, &["_cpy_in"], |of| of[0].clone()),
            "MergeLibraryNode" => self.elementwise(frame, walk, n, &["_mrg_mask", "_mrg_t", "_mrg_f"], |of| {
                Value::choice(of[0].clone().truth(), of[1].clone(), of[2].clone())
            }),
            "FillLibraryNode" => {
                let value = self.number(frame, about, "value", 0.0)?;
                self.elementwise(frame, walk, n, &[], |_| value.clone())
            }
            other => stop(format!(
                "the library node {other} is not read; sdfg.expand_library_nodes() with its `pure` implementation writes it as maps"
            )),
        }
    }

    /// A number or expression among a node's attributes.
    fn number(&mut self, frame: &SdfgFrame, about: &Json, key: &str, usual: f64) -> Done<Value> {
        match about.get(key) {
            None | Some(Json::Null) => Ok(Value::Number(usual)),
            Some(Json::String(text)) => {
                let ast = python::expression(text).map_err(UnreadReason::Why)?;
                evaluate::value(&mut self.made, frame, &evaluate::Names::default(), &ast)
            }
            Some(json) => json.as_f64().map(Value::Number).ok_or_else(|| UnreadReason::Why(format!("its `{key}` is `{json}`"))),
        }
    }

    fn given(&mut self, frame: &SdfgFrame, walk: &StateWalk, n: usize, connector: Option<&str>) -> Done<Option<Part>> {
        let edge = walk.incoming(n).find(|e| match connector {
            Some(name) => e.to.1.as_deref() == Some(name),
            None => e.memlet.data.is_some(),
        });
        let Some(edge) = edge else { return Ok(None) };
        let (source, slot) = self.source(walk, edge).ok_or(UnreadReason::Earlier)?;
        if slot.borrow().body.is_none() {
            return Err(UnreadReason::Earlier);
        }
        let subset = self.side(frame, edge, &source, None, &slot, true)?;
        let kept = (0..subset.begins.len()).collect();
        Ok(Some(Part { slot, subset, kept }))
    }

    fn needed(&mut self, frame: &SdfgFrame, walk: &StateWalk, n: usize, connector: &str) -> Done<Part> {
        self.given(frame, walk, n, Some(connector))?
            .ok_or_else(|| UnreadReason::Why(format!("nothing flows into its connector `{connector}`")))
    }

    fn at(&mut self, part: &Part, points: &[AffineInteger]) -> Done<Value> {
        let slot = part.slot.clone();
        self.made.element(&slot, &part.at(points))
    }

    /// The edge that a node's result leaves by, its container, and the part of it that is written.
    fn target<'g>(&mut self, frame: &SdfgFrame, walk: &StateWalk<'g>, n: usize) -> Done<(&'g DataflowEdge, String, Part)> {
        let edge = walk.outgoing(n).find(|e| e.memlet.data.is_some()).ok_or_else(|| UnreadReason::Why("its result goes nowhere".into()))?;
        let sink = walk.sink(edge).ok_or_else(|| UnreadReason::Why("its result goes nowhere".into()))?;
        let array = frame.sdfg.arrays.get(&sink).ok_or_else(|| UnreadReason::Why(format!("`{sink}` is not declared")))?;
        let shape = self.shape(frame, array)?;
        let slot = self.empty(&sink, &shape, false);
        let subset = self.side(frame, edge, &sink, None, &slot, false)?;
        let kept = (0..subset.begins.len()).collect();
        Ok((edge, sink, Part { slot, subset, kept }))
    }

    /// Writes a node's result: its value at each point of the part.
    fn finish<'g>(
        &mut self,
        frame: &mut SdfgFrame<'g>,
        walk: &StateWalk<'g>,
        n: usize,
        (edge, sink, part): (&'g DataflowEdge, String, Part),
        f: impl FnOnce(&mut Self, &[AffineInteger], &Part) -> Done<(Value, Option<ReductionOperator>)>,
    ) -> Done<Vec<Leaving>> {
        let ids = self.made.fresh(&part.counts());
        let at: Vec<AffineInteger> = ids.iter().map(|id| AffineInteger::index(*id)).collect();
        let (body, mut combine) = f(self, &at, &part)?;
        if let Some(wcr) = &edge.memlet.wcr {
            combine = Some(evaluate::combine(wcr)?);
        }
        let write = Write { points: ids, at: part.at(&at), body, combine, guard: Value::Number(1.0), comment: walk.comment(n) };
        self.send(frame, walk, edge, &sink, write)
    }

    /// A product over indices of which the result lacks some.
    fn contracted(&mut self, factors: &[(Part, Vec<usize>)], kept: &[(usize, AffineInteger)], scale: Value) -> Done<Value> {
        let mut places: IndexMap<usize, AffineInteger> = kept.iter().cloned().collect();
        let mut over: Vec<Id> = vec![];
        for (part, labels) in factors {
            for (label, count) in labels.iter().zip(part.counts()) {
                if !places.contains_key(label) {
                    let id = self.made.indices.add(count);
                    over.push(id);
                    places.insert(*label, AffineInteger::index(id));
                }
            }
        }
        let mut value: Option<Value> = None;
        for (part, labels) in factors {
            let at: Vec<AffineInteger> = labels
                .iter()
                .zip(part.counts())
                .map(|(label, count)| if count == 1 { AffineInteger::number(0) } else { places[label].clone() })
                .collect();
            let read = self.at(part, &at)?;
            value = Some(match value {
                None => read,
                Some(value) => Value::binary(BinaryOperator::Mul, value, read),
            });
        }
        let sum = self.made.reduced(ReductionOperator::Sum, &over, value.unwrap_or(Value::Number(1.0)))?;
        Ok(Value::binary(BinaryOperator::Mul, scale, sum))
    }

    fn product<'g>(
        &mut self,
        frame: &mut SdfgFrame<'g>,
        walk: &mut StateWalk<'g>,
        n: usize,
        class: &str,
        about: &Json,
    ) -> Done<Vec<Leaving>> {
        let (left, right, addend) = match class {
            "Gemv" => ("_A", "_x", Some("_y")),
            "Dot" => ("_x", "_y", None),
            "Ger" => ("_x", "_y", Some("_A")),
            _ => ("_a", "_b", Some("_cin")),
        };
        let (mut a, mut b) = (self.needed(frame, walk, n, left)?, self.needed(frame, walk, n, right)?);
        let target = self.target(frame, walk, n)?;
        let mut c = target.2.clone();
        let alpha = self.number(frame, about, "alpha", 1.0)?;
        let beta = self.number(frame, about, "beta", if class == "Ger" { 1.0 } else { 0.0 })?;
        let turned = |key: &str| about.get(key).and_then(Json::as_bool).unwrap_or(false);
        let full = a.kept.len() >= 2 && b.kept.len() >= 2 && c.kept.len() == a.kept.len().max(b.kept.len()) && class != "Dot";
        if !full {
            (a, b, c) = (a.squeezed(), b.squeezed(), c.squeezed());
        }
        for (part, key) in [(&mut a, "transA"), (&mut b, "transB")] {
            let rank = part.kept.len();
            if turned(key) && rank >= 2 {
                part.kept.swap(rank - 1, rank - 2);
            }
        }
        const ROW: usize = 100;
        const SHARED: usize = 101;
        const COLUMN: usize = 102;
        let (ra, rb, rc) = (a.kept.len(), b.kept.len(), c.kept.len());
        let front = ra.max(rb).saturating_sub(2);
        let batch = |rank: usize| (front - (rank - 2)..front).collect::<Vec<usize>>();
        let (la, lb, lc): (Vec<usize>, Vec<usize>, Vec<usize>) = match (ra, rb, rc) {
            (0, _, _) | (_, 0, _) => {
                ((0..ra).map(|n| n + 10).collect(), (0..rb).map(|n| n + 10).collect(), (0..rc).map(|n| n + 10).collect())
            }
            (1, 1, 2) => (vec![ROW], vec![COLUMN], vec![ROW, COLUMN]),
            (1, 1, _) => (vec![SHARED], vec![SHARED], vec![]),
            (1, _, _) => (vec![SHARED], [batch(rb), vec![SHARED, COLUMN]].concat(), [batch(rb), vec![COLUMN]].concat()),
            (_, 1, _) => ([batch(ra), vec![ROW, SHARED]].concat(), vec![SHARED], [batch(ra), vec![ROW]].concat()),
            _ => (
                [batch(ra), vec![ROW, SHARED]].concat(),
                [batch(rb), vec![SHARED, COLUMN]].concat(),
                [(0..front).collect(), vec![ROW, COLUMN]].concat(),
            ),
        };
        if lc.len() != rc {
            return stop(format!("operands of {ra} and {rb} axes have no product of {rc}"));
        }
        let size = |part: &Part, labels: &[usize]| labels.iter().position(|l| *l == SHARED).map(|n| part.counts()[n]);
        if size(&a, &la) != size(&b, &lb) {
            return stop(format!("shapes {:?} and {:?} have no product", a.counts(), b.counts()));
        }
        let added = match (addend, beta.number()) {
            (_, Some(0.0)) | (None, _) => None,
            (Some(connector), _) => {
                let cin = about.get("cin").and_then(Json::as_bool).unwrap_or(true);
                match self.given(frame, walk, n, Some(connector))? {
                    Some(part) => Some(part),
                    None if cin => self.given(frame, walk, n, Some("_c"))?,
                    None => None,
                }
            }
        };
        let target = (target.0, target.1, c);
        self.finish(frame, walk, n, target, |reader, at, _| {
            let kept: Vec<(usize, AffineInteger)> = lc.iter().copied().zip(at.iter().cloned()).collect();
            let sum = reader.contracted(&[(a, la), (b, lb)], &kept, alpha)?;
            let old = match added {
                Some(part) => {
                    let part = if part.kept.len() == at.len() { part } else { part.squeezed() };
                    reader.at(&part, at)?
                }
                None if beta.number() == Some(0.0) => return Ok((sum, None)),
                None => Value::Prior,
            };
            Ok((Value::binary(BinaryOperator::Add, Value::binary(BinaryOperator::Mul, beta, old), sum), None))
        })
    }

    fn einsum<'g>(&mut self, frame: &mut SdfgFrame<'g>, walk: &mut StateWalk<'g>, n: usize, about: &Json) -> Done<Vec<Leaving>> {
        let text = about.get("einsum_str").and_then(Json::as_str).unwrap_or_default().replace(' ', "");
        let Some((left, right)) = text.split_once("->") else { return stop(format!("its `{text}` does not say what the result has")) };
        let alpha = self.number(frame, about, "alpha", 1.0)?;
        let beta = self.number(frame, about, "beta", 0.0)?;
        let labels = |term: &str| term.chars().map(|c| c as usize).collect::<Vec<usize>>();
        // Connectors come in the order of their names.
        let mut connectors: Vec<String> = walk.incoming(n).filter_map(|e| e.to.1.clone()).filter(|c| c != "_cin").collect();
        connectors.sort();
        let terms: Vec<&str> = left.split(',').collect();
        if terms.len() != connectors.len() || text.contains('.') {
            return stop(format!("`{text}` has {} operands, and {} flow in", terms.len(), connectors.len()));
        }
        let mut factors = vec![];
        for (term, connector) in terms.iter().zip(&connectors) {
            let mut part = self.needed(frame, walk, n, connector)?;
            if part.kept.len() != term.len() {
                part = part.squeezed();
            }
            if part.kept.len() != term.len() {
                return stop(format!("the operand `{term}` has {} axes", part.kept.len()));
            }
            factors.push((part, labels(term)));
        }
        let (edge, sink, mut part) = self.target(frame, walk, n)?;
        if part.kept.len() != right.len() {
            part = part.squeezed();
        }
        let right = labels(right);
        self.finish(frame, walk, n, (edge, sink, part), |reader, at, _| {
            let kept: Vec<(usize, AffineInteger)> = right.iter().copied().zip(at.iter().cloned()).collect();
            let sum = reader.contracted(&factors, &kept, alpha)?;
            match beta.number() {
                Some(0.0) => Ok((sum, None)),
                _ => Ok((Value::binary(BinaryOperator::Add, Value::binary(BinaryOperator::Mul, beta, Value::Prior), sum), None)),
            }
        })
    }

    fn tensordot<'g>(&mut self, frame: &mut SdfgFrame<'g>, walk: &mut StateWalk<'g>, n: usize, about: &Json) -> Done<Vec<Leaving>> {
        let axes = |key: &str| -> Vec<usize> {
            about.get(key).and_then(Json::as_array).into_iter().flatten().filter_map(|v| v.as_u64().map(|n| n as usize)).collect()
        };
        let (left, right) = (axes("left_axes"), axes("right_axes"));
        let (a, b) = (self.needed(frame, walk, n, "_left_tensor")?, self.needed(frame, walk, n, "_right_tensor")?);
        const SHARED: usize = 200;
        let labels = |rank: usize, shared: &[usize], first: usize| -> Vec<usize> {
            (0..rank).map(|n| shared.iter().position(|axis| *axis == n).map_or(first + n, |at| SHARED + at)).collect()
        };
        let (la, lb) = (labels(a.kept.len(), &left, 0), labels(b.kept.len(), &right, 100));
        let mut kept: Vec<usize> = la.iter().chain(&lb).copied().filter(|label| *label < SHARED).collect();
        let order = axes("permutation");
        if order.len() == kept.len() {
            kept = order.iter().filter_map(|n| kept.get(*n).copied()).collect();
        }
        let target = self.target(frame, walk, n)?;
        if target.2.kept.len() != kept.len() {
            return stop("its result has another number of axes than its operands leave");
        }
        self.finish(frame, walk, n, target, |reader, at, _| {
            let kept: Vec<(usize, AffineInteger)> = kept.iter().copied().zip(at.iter().cloned()).collect();
            Ok((reader.contracted(&[(a, la), (b, lb)], &kept, Value::Number(1.0))?, None))
        })
    }

    fn reduction<'g>(&mut self, frame: &mut SdfgFrame<'g>, walk: &mut StateWalk<'g>, n: usize, about: &Json) -> Done<Vec<Leaving>> {
        let input = self.given(frame, walk, n, None)?.ok_or_else(|| UnreadReason::Why("nothing flows in".into()))?;
        let rank = input.kept.len();
        let axes: Vec<usize> = match about.get("axes").and_then(Json::as_array) {
            Some(axes) => {
                axes.iter().filter_map(Json::as_i64).map(|axis| if axis < 0 { axis + rank as i64 } else { axis } as usize).collect()
            }
            None => (0..rank).collect(),
        };
        let wcr = about.get("wcr").and_then(Json::as_str).unwrap_or_default();
        let combine = evaluate::combine(wcr)?;
        let identity = match about.get("identity") {
            Some(Json::String(text)) if text == "None" => None,
            None | Some(Json::Null) => None,
            Some(_) => self.number(frame, about, "identity", 0.0)?.number(),
        };
        let (edge, sink, part) = self.target(frame, walk, n)?;
        let open: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
        let counts: Vec<i64> = open.iter().map(|axis| input.subset.counts[*axis]).collect();
        let (part, open) = if part.counts() == counts {
            (part, open)
        } else {
            (part.squeezed(), open.into_iter().filter(|a| input.subset.counts[*a] != 1).collect())
        };
        if part.kept.len() != open.len() {
            return stop(format!("{} axes stay, and its result has {}", open.len(), part.kept.len()));
        }
        self.finish(frame, walk, n, (edge, sink, part), |reader, at, _| {
            let mut places = vec![AffineInteger::number(0); rank];
            for (axis, place) in open.iter().zip(at) {
                places[*axis] = place.clone();
            }
            let over: Vec<Id> = axes.iter().map(|axis| reader.made.indices.add(input.subset.counts[*axis])).collect();
            for (axis, id) in axes.iter().zip(&over) {
                places[*axis] = AffineInteger::index(*id);
            }
            let read = reader.at(&input, &places)?;
            let one: IndexMap<Id, AffineInteger> =
                over.iter().filter(|id| reader.made.indices.sizes[**id] == 1).map(|id| (*id, AffineInteger::number(0))).collect();
            let read = read.substitute(&one, &reader.made.indices);
            let over: Vec<Id> = over.into_iter().filter(|id| !one.contains_key(id)).collect();
            let reduced = reader.made.reduced(combine, &over, read)?;
            Ok(match identity {
                None => (reduced, Some(combine)),
                Some(identity) if combine.is_neutral(identity) => (reduced, None),
                Some(identity) => (combine.join(Value::Number(identity), reduced), None),
            })
        })
    }

    fn transposition<'g>(
        &mut self,
        frame: &mut SdfgFrame<'g>,
        walk: &mut StateWalk<'g>,
        n: usize,
        class: &str,
        about: &Json,
    ) -> Done<Vec<Leaving>> {
        let input = self.given(frame, walk, n, None)?.ok_or_else(|| UnreadReason::Why("nothing flows in".into()))?;
        let rank = input.kept.len();
        let axes: Vec<usize> = match about.get("axes").and_then(Json::as_array) {
            Some(axes) if class == "TensorTranspose" && !axes.is_empty() => {
                axes.iter().filter_map(|a| a.as_u64().map(|a| a as usize)).collect()
            }
            _ => (0..rank).rev().collect(),
        };
        let alpha = self.number(frame, about, "alpha", 1.0)?;
        let beta = self.number(frame, about, "beta", 0.0)?;
        let target = self.target(frame, walk, n)?;
        if axes.len() != rank || target.2.kept.len() != rank || axes.iter().any(|axis| *axis >= rank) {
            return stop(format!("its operand has {rank} axes, and its result {}", target.2.kept.len()));
        }
        self.finish(frame, walk, n, target, |reader, at, _| {
            let mut places = vec![AffineInteger::number(0); rank];
            for (n, axis) in axes.iter().enumerate() {
                places[*axis] = at[n].clone();
            }
            let read = Value::binary(BinaryOperator::Mul, alpha, reader.at(&input, &places)?);
            Ok(match beta.number() {
                Some(0.0) => (read, None),
                _ => (Value::binary(BinaryOperator::Add, Value::binary(BinaryOperator::Mul, beta, Value::Prior), read), None),
            })
        })
    }

    fn axpy<'g>(&mut self, frame: &mut SdfgFrame<'g>, walk: &mut StateWalk<'g>, n: usize, about: &Json) -> Done<Vec<Leaving>> {
        let factor = self.number(frame, about, "a", 1.0)?;
        self.elementwise(frame, walk, n, &["_x", "_y"], |of| {
            Value::binary(BinaryOperator::Add, Value::binary(BinaryOperator::Mul, factor.clone(), of[0].clone()), of[1].clone())
        })
    }

    fn elementwise<'g>(
        &mut self,
        frame: &mut SdfgFrame<'g>,
        walk: &mut StateWalk<'g>,
        n: usize,
        connectors: &[&str],
        f: impl Fn(&[Value]) -> Value,
    ) -> Done<Vec<Leaving>> {
        let parts = connectors.iter().map(|c| self.needed(frame, walk, n, c).map(Part::squeezed)).collect::<Done<Vec<_>>>()?;
        let (edge, sink, part) = self.target(frame, walk, n)?;
        let part = part.squeezed();
        if let Some(other) = parts.iter().find(|other| !other.kept.is_empty() && other.counts() != part.counts()) {
            return stop(format!("shapes {:?} and {:?} do not fit each other", other.counts(), part.counts()));
        }
        self.finish(frame, walk, n, (edge, sink, part), |reader, at, _| {
            let values =
                parts.iter().map(|p| if p.kept.is_empty() { reader.at(p, &[]) } else { reader.at(p, at) }).collect::<Done<Vec<_>>>()?;
            Ok((f(&values), None))
        })
    }
}
