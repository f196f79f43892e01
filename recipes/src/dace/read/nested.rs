//! Nested SDFGs: what is inside is read with the containers around it, and written to its place outside.

use super::evaluate;
use super::frame::SdfgFrame;
use super::graph::{DataflowEdge, NodeKind};
use super::integer::{AffineInteger, Id};
use super::reader::{Reader, Subset, points};
use super::slot::{SlotRef, UnreadReason, Write};
use super::state::{Leaving, StateWalk};
use super::value::Value;
use indexmap::IndexMap;

type Done<T> = Result<T, UnreadReason>;

impl Reader {
    /// A nested SDFG: its arrays begin where the memlets around it do.
    pub(super) fn nested<'g>(&mut self, frame: &mut SdfgFrame<'g>, walk: &mut StateWalk<'g>, n: usize) -> Done<Vec<Leaving>> {
        let node = &walk.state.nodes[n];
        let NodeKind::Nested { sdfg, symbols, inputs, outputs } = &node.kind else { return Ok(vec![]) };
        let path = format!("the nested SDFG `{}` of {}", sdfg.name, walk.place);
        let mut inner = SdfgFrame { sdfg, slots: IndexMap::new(), symbols: IndexMap::new(), path };
        for name in &sdfg.symbols {
            if let Some(symbol) = frame.symbols.get(name) {
                inner.symbols.insert(name.clone(), symbol.clone());
            }
        }
        for (name, ast) in symbols {
            let ast = ast.as_ref().map_err(|why| UnreadReason::Why(why.clone()))?;
            let value = evaluate::value(&mut self.made, frame, &evaluate::Names::default(), ast)?;
            inner.symbols.insert(name.clone(), super::control::symbol(value));
        }
        for connector in inputs {
            let Some(edge) = walk.incoming(n).find(|e| e.to.1.as_deref() == Some(connector)) else { continue };
            let (source, slot) = self.source(walk, edge).ok_or(UnreadReason::Earlier)?;
            let mut subset = self.side(frame, edge, &source, None, &slot, true)?;
            self.begin(&mut subset);
            let own = self.pointer(frame, &inner, (&source, &slot), &subset, connector)?;
            inner.slots.insert(connector.clone(), own);
        }
        let mut targets = vec![];
        for connector in outputs {
            let Some(edge) = walk.outgoing(n).find(|e| e.from.1.as_deref() == Some(connector)) else { continue };
            let Some(sink) = walk.sink(edge) else { continue };
            let array = frame.sdfg.arrays.get(&sink).ok_or_else(|| UnreadReason::Why(format!("`{sink}` is not declared")))?;
            let shape = self.shape(frame, array)?;
            let old = match frame.slots.get(&sink) {
                Some(old) if old.borrow().body.is_some() => old.clone(),
                _ => self.empty(&sink, &shape, false),
            };
            let mut subset = self.side(frame, edge, &sink, None, &old, false)?;
            self.begin(&mut subset);
            if !inner.slots.contains_key(connector) {
                let undefined = old.borrow().body == Some(Value::Undefined);
                let own = self.pointer(frame, &inner, (&sink, &old), &subset, connector)?;
                {
                    let mut own = own.borrow_mut();
                    own.prior = if undefined { Some(Value::Undefined) } else { own.body.clone() };
                    own.body = Some(Value::Prior);
                }
                own.borrow_mut().writes = Some(vec![]);
                inner.slots.insert(connector.clone(), own);
            } else {
                inner.slots[connector].borrow_mut().writes = Some(vec![]);
            }
            targets.push((connector, edge, sink, subset));
        }
        let kept: Vec<(Vec<Id>, Value)> = targets
            .iter()
            .map(|(c, ..)| {
                let slot = inner.slots[*c].borrow();
                (slot.axes.clone(), slot.body.clone().unwrap_or(Value::Undefined))
            })
            .collect();
        self.region(&mut inner, &sdfg.region);
        let mut leaving = vec![];
        for ((connector, edge, sink, subset), before) in targets.into_iter().zip(kept) {
            let slot = inner.slots[connector].clone();
            let body = slot.borrow().body.clone();
            let Some(body) = body else { return Err(UnreadReason::Earlier) };
            if body == before.1 && slot.borrow().axes == before.0 {
                continue;
            }
            let writes = slot.borrow().writes.clone().filter(|writes| !writes.is_empty());
            if let (Some(writes), true) = (writes, self.same_array(frame, &inner, &sink, connector, &subset)?) {
                for write in writes {
                    leaving.extend(self.send(frame, walk, edge, &sink, write)?);
                }
                continue;
            }
            let write = self.outward(frame, &inner, connector, &sink, &subset, edge, (&slot, &before))?;
            leaving.extend(self.send(frame, walk, edge, &sink, write)?);
        }
        Ok(leaving)
    }

    /// A write without the points that keep what the element held.
    fn narrowed(&self, mut write: Write, axes: &[Id], before: &Value) -> Write {
        let mut fixed: Option<Vec<(usize, AffineInteger)>> = None;
        let mut open = &write.body;
        while let Value::Where(condition, _, otherwise) = open {
            let own: Vec<(usize, AffineInteger)> = condition.conjuncts().into_iter().filter_map(|c| super::sums::place(c, axes)).collect();
            fixed = Some(match fixed {
                None => own,
                Some(before) => before.into_iter().filter(|place| own.contains(place)).collect(),
            });
            open = otherwise;
        }
        if open != before {
            return write;
        }
        let by: IndexMap<Id, AffineInteger> = fixed.unwrap_or_default().into_iter().map(|(axis, at)| (axes[axis], at)).collect();
        write.points.retain(|id| !by.contains_key(id));
        write.at = write.at.iter().map(|i| i.substitute(&by, &self.made.indices)).collect();
        write.body = write.body.substitute(&by, &self.made.indices);
        if let Value::Where(condition, value, otherwise) = &write.body
            && **otherwise == before.substitute(&by, &self.made.indices)
        {
            write.guard = Value::both(write.guard, (**condition).clone());
            write.body = (**value).clone();
        }
        write
    }

    /// Whether an array of a nested SDFG is all of the one around it.
    fn same_array(&mut self, outer: &SdfgFrame, inner: &SdfgFrame, sink: &str, connector: &str, subset: &Subset) -> Done<bool> {
        let (Some(of), Some(own)) = (outer.sdfg.arrays.get(sink).cloned(), inner.sdfg.arrays.get(connector).cloned()) else {
            return Ok(false);
        };
        let (of_shape, shape) = (self.shape(outer, &of)?, self.shape(inner, &own)?);
        let same = of_shape == shape && self.strides(outer, &of, &of_shape) == self.strides(inner, &own, &shape);
        Ok(same && subset.begins.iter().all(|begin| begin.constant() == Some(0)))
    }

    /// Where the array of a nested SDFG begins.
    fn begin(&self, subset: &mut Subset) {
        if self.whole_arguments {
            subset.begins.iter_mut().for_each(|begin| *begin = AffineInteger::number(0));
        }
    }

    /// What an array of a nested SDFG holds, written to its place outside.
    #[allow(clippy::too_many_arguments)]
    fn outward(
        &mut self,
        outer: &SdfgFrame,
        inner: &SdfgFrame,
        connector: &str,
        sink: &str,
        subset: &Subset,
        edge: &DataflowEdge,
        (slot, before): (&SlotRef, &(Vec<Id>, Value)),
    ) -> Done<Write> {
        let declared = |frame: &SdfgFrame, name: &str| {
            frame.sdfg.arrays.get(name).cloned().ok_or_else(|| UnreadReason::Why(format!("`{name}` is not declared")))
        };
        let (of, own) = (declared(outer, sink)?, declared(inner, connector)?);
        let (of_shape, shape) = (self.shape(outer, &of)?, self.shape(inner, &own)?);
        let (of_strides, strides) = (self.strides(outer, &of, &of_shape), self.strides(inner, &own, &shape));
        let ids = self.made.fresh(&shape);
        let at: Vec<AffineInteger> = ids.iter().map(|id| AffineInteger::index(*id)).collect();
        let offset = at.iter().zip(&strides).fold(AffineInteger::number(0), |sum, (place, stride)| sum.plus(place, *stride));
        let places = self.places(&subset.begins, &of_strides, &offset);
        let combine = edge.memlet.wcr.as_deref().map(evaluate::combine).transpose()?;
        let comment = slot.borrow().comment.clone();
        let raw = |reader: &Self, at: &[AffineInteger]| {
            let slot = slot.borrow();
            reader.made.substituted(slot.body.as_ref().unwrap_or(&Value::Undefined), &slot.axes, at)
        };
        let plain = places.iter().all(|place| ids.iter().all(|id| place.coefficient(*id).is_some()));
        if plain {
            let body = raw(self, &at);
            let combine = combine.filter(|_| !body.any(&|v| *v == Value::Prior));
            let write = Write { points: ids.clone(), at: places, body, combine, guard: Value::Number(1.0), comment };
            let before = self.made.substituted(&before.1, &before.0, &at);
            return Ok(self.narrowed(write, &ids, &before));
        }
        // Counted by the places outside.
        let (ids, at) = points(&mut self.made, subset);
        let zero: Vec<AffineInteger> = vec![AffineInteger::number(0); shape.len()];
        let offset = at
            .iter()
            .zip(&subset.begins)
            .zip(&of_strides)
            .fold(AffineInteger::number(0), |sum, ((place, begin), stride)| sum.plus(&place.clone().minus(begin), *stride));
        let inside = self.places(&zero, &strides, &offset);
        let body = raw(self, &inside);
        Ok(Write { points: ids, at, body, combine, guard: Value::Number(1.0), comment })
    }
}
