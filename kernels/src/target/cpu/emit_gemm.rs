//! The C of one matrix product: where its operands are packed, and the call.

use crate::caches::largest_cache;
use crate::emit::gemm::{GemmAxis, Matrices};
use crate::emit::printer::{Prepared, PrintedLoops};
use crate::emit::scalar::value;
use crate::error::KernelError;
use crate::loopnest::{Element, LoopGroup, MemorySpace, NestTensor, Tile};
use crate::processor::{PanelBlock, near};
use crate::target::cpu::emit::CPrinter;
use sdfg::{Dtype, Expr};
use std::collections::BTreeMap;

/// Elements of an operand that a worker may keep packed between points.
const KEPT: i64 = 1 << 20;
/// Panels of columns that are packed as one step before the first point.
const PORTION: i64 = 8;
/// The same of rows.
const LINES: i64 = 8;
/// Most elements of rows that are packed for all points: packed rows are read from memory a second time.
const MOST_LINES: i64 = 1 << 24;

/// C texts of a packed operand, of its columns, and of the first column to multiply by.
type Operand = (String, String, String);

/// How rows lie in memory, distances in elements.
struct Lines {
    row: i64,
    step: i64,
    /// Bytes that a neighbour along the rows is counted with.
    bytes: i64,
    /// Whether they must be packed.
    fixed: bool,
}

impl Lines {
    /// Whether rows by which `passing` columns are multiplied, in so many tiles of `tile` columns, had better be packed once for all:
    /// where a tile by itself would pack them (`lie_well` in `gemm.c`), and where so many columns pass that instructions with
    /// shorter addresses win back what packing takes. Rows that are neighbours are packed twice in less time than they are brought
    /// to a farther cache and back.
    fn want_packing(&self, block: PanelBlock, width: i64, passing: i64, (tiles, tile): (i64, i64)) -> bool {
        match (self.step, self.row) {
            (1, row) if !self.fixed && block.reads_rows() => passing > 2 * width && row * self.bytes % 2048 == 0,
            (1, _) => self.fixed || passing > 16 * width,
            (step, 1) if !self.fixed && step <= 256 && tile <= 4 * width => false,
            _ => tiles > 2,
        }
    }
}

impl CPrinter<'_> {
    /// C text of a pointer to an element with some indices at their first iteration.
    pub(super) fn pointer(&mut self, element: &Element, first: &BTreeMap<String, Expr>) -> Result<String, KernelError> {
        let subscripts = element.subscripts.iter().map(|e| e.substitute(first)).collect();
        Ok(format!("&{}", self.place(&Element { subscripts, ..element.clone() })?))
    }

    pub fn gemm(&mut self, group: &LoopGroup, depth: usize) -> Result<(), KernelError> {
        let (Some(statement), Some(products)) = (group.statements.first(), self.nest.gemm) else {
            return Err(self.unsupported("a group of products is empty".into()));
        };
        let bytes = if self.double { 8 } else { 4 };
        let width = products.block.width(bytes) as i64;
        // Columns are packed, and results written, in runs of whole panels; rows are packed a block of the depth at a time, whole
        // vectors of it.
        let in_panels = |_: usize, block: i64, _: i64| block % width == 0;
        let in_blocks = |t: usize, block: i64, step: i64| t == 0 && step == 1 && block % width == 0;
        let Matrices { scale, a, b, out, rows, columns, steps, loops, again } =
            self.matrices(group, products.across, [&in_panels, &in_blocks])?;

        self.line(depth, format!("/* {} */", statement.name.replace("*/", "")));
        self.line(depth, "{");
        let mut level = depth + 1;
        for axis in loops.iter().chain(&again) {
            let at = self.index(&axis.indices[0]);
            self.line(level, format!("for (int64_t {at} = 0; {at} < {}; ++{at})", axis.count));
            level += 1;
        }
        if level > depth + 1 {
            self.line(level - 1, "{");
        }
        let first: BTreeMap<String, Expr> =
            [&rows, &columns, &steps].into_iter().flatten().flat_map(|x| &x.indices).map(|i| (i.clone(), Expr::Int(0))).collect();
        let (left, right, to) = (self.pointer(&a, &first)?, self.pointer(&b, &first)?, self.pointer(&out, &first)?);
        let count = |axis: &Option<GemmAxis>| axis.as_ref().map_or_else(|| "1".to_string(), |x| x.count.clone());
        let most = |axis: &Option<GemmAxis>| axis.as_ref().map_or(1, |x| x.most);
        let (m, n, k) = (count(&rows), count(&columns), count(&steps));
        let step = |axis: &Option<GemmAxis>, t: usize| axis.as_ref().and_then(|x| x.strides[t]).unwrap_or(0);
        self.given("most".into(), products.depth);
        let number = self.fresh("");
        let mut stride = |name: &str, axis: &Option<GemmAxis>, t: usize| self.given(format!("{name}{number}"), step(axis, t));
        let (a_row, a_step) = (stride("a_row", &rows, 0), stride("a_step", &steps, 0));
        let (b_step, b_column) = (stride("b_step", &steps, 1), stride("b_column", &columns, 1));
        let (c_row, c_column) = (stride("c_row", &rows, 2), stride("c_column", &columns, 2));

        let jump = |axis: &Option<GemmAxis>, t: usize| axis.as_ref().and_then(|x| x.jumps[t]).unwrap_or(0);
        let block = if jump(&steps, 0) == 0 { 1 } else { steps.as_ref().map_or(1, |x| x.block) };
        let a_block = self.given(format!("a_block{number}"), block);
        let column_block = columns.as_ref().map_or(1, |x| x.block);
        let jumps = [("columns_block", column_block), ("b_jump", jump(&columns, 1)), ("c_jump", jump(&columns, 2))];
        let [columns_block, b_jump, c_jump] = jumps.map(|(name, value)| self.given(format!("{name}{number}"), value));
        let chunk = most(&steps).min(products.depth.max(block));
        self.loops.push(PrintedLoops {
            writes: vec![out.data.clone()],
            lanes: columns.iter().flat_map(|axis| axis.indices.clone()).collect(),
            packed: steps.as_ref().map(|axis| (axis.indices.clone(), chunk)),
        });
        let slack = 2 * products.block.vector;
        let padded = (most(&columns) + width - 1) / width * width;
        let mut ready = ("0".to_string(), "0".to_string(), "0".to_string());
        let types = self.types(&a, &b)?;
        let a_jump = self.given(format!("a_jump{number}"), jump(&steps, 0));
        let lies = [&b_step, &b_column, &columns_block, &b_jump, &k, &a_block].map(String::as_str);
        if jump(&columns, 1) != 0 && column_block == width {
            // In panels already.
        } else if let Some((whole, from)) = self.prepare(&b, &columns, &steps, width, lies, (bytes, types))? {
            ready = whole;
            ready.2 = from;
        } else if let Some(tag) = self.tag(&b, &loops, &again).filter(|_| padded * most(&steps) <= KEPT) {
            let (slot, panel) = (self.held, format!("panel{}", self.held));
            self.held += 1;
            self.room(&panel, (padded * most(&steps)) as usize * bytes + slack);
            self.line(level, format!("if (held[{slot}] != {tag}) {{"));
            self.line(
                level + 1,
                format!("pack_chunks({right}, {b_step}, {b_column}, {columns_block}, {b_jump}, {types}, {n}, {k}, most, {a_block}, in_panels({n}), 0, {panel}, 0);"),
            );
            self.line(level + 1, format!("held[{slot}] = {tag};"));
            self.line(level, "}");
            ready = (panel, format!("in_panels({n})"), "0".into());
        }
        if ready.0 == "0" {
            let stay = near().max((width * chunk) as usize * bytes);
            self.room("columns", stay.min((padded * chunk) as usize * bytes) + slack);
        }
        let lies = [&a_row, &a_step, &k, &a_block, &a_jump].map(String::as_str);
        let lines = self.prepare_lines(&a, [&rows, &columns, &steps], lies, (bytes, types))?;
        let rows_room = if lines.is_some() { "0" } else { "rows" };
        if lines.is_none() {
            // A few that are copied lie up to three vectors farther apart than they are deep.
            self.room("rows", most(&rows) as usize * (chunk as usize * bytes + 3 * products.block.vector) + slack);
        }
        let lines = lines.unwrap_or_else(|| ("0".into(), "0".into(), "0".into()));
        let jumps = [a_block, a_jump, columns_block, b_jump, c_jump];
        let columns_room = if ready.0 == "0" { "columns" } else { "0" };
        // Operands packed for all points need no prefetch; loops around advance before points do.
        let own = [lines.0 == "0", !ready.0.starts_with("prepared")].map(|own| own && loops.is_empty() && again.is_empty());
        let next = self.next([(&a, left.as_str(), own[0]), (&b, right.as_str(), own[1])], level);
        let scale = value(&scale, self);
        let add = self.adds(&out, &again)?;
        let streams = if add == "0" { self.streamed(&out.data)? } else { "" };
        self.line(
            level,
            format!("gemm({m}, {n}, {k}, most, {left}, {a_row}, {a_step}, {scale}, {right}, {b_step}, {b_column}, {types}{streams},"),
        );
        self.line(
            level + 1,
            format!(
                "{to}, {c_row}, {c_column}, {add}, {rows_room}, {columns_room}, {}, {}, {}, {}, {}, {}, {}, {});",
                ready.0,
                ready.1,
                ready.2,
                lines.0,
                lines.1,
                lines.2,
                jumps.join(", "),
                next.join(", ")
            ),
        );
        if level > depth + 1 {
            self.line(level - 1, "}");
        }
        self.line(depth, "}");
        Ok(())
    }

    /// Of two factors, as `memlet_gemm` takes it: which of them are bf16 in memory, and whether both count as bf16.
    fn types(&self, a: &Element, b: &Element) -> Result<i32, KernelError> {
        let (a, b) = (self.tensor(&a.data)?, self.tensor(&b.data)?);
        // Local containers are held in f32, whatever their type.
        let narrow = |t: &NestTensor| i32::from(t.dtype == Dtype::Bf16 && matches!(t.space, MemorySpace::Heap { .. }));
        let paired = self.nest.gemm.is_some_and(|p| p.pairs);
        let both = i32::from(paired && a.dtype == Dtype::Bf16 && b.dtype == Dtype::Bf16);
        Ok(narrow(a) | narrow(b) << 1 | both << 2)
    }

    /// C text for a product's types that has its result written around the caches, where it is one that this kernel does not read:
    /// when no kernel reads it soon, since it is handed back at the end of the step or larger than all caches, or when cores share no
    /// cache.
    fn streamed(&self, data: &str) -> Result<&'static str, KernelError> {
        let Some(MemorySpace::Heap { root, .. }) = self.nest.tensors.get(data).map(|t| &t.space) else { return Ok("") };
        let space = |data: &str| self.nest.tensors.get(data).map(|t| &t.space);
        let mine = |data: &str| matches!(space(data), Some(MemorySpace::Heap { root: other, .. }) if other == root);
        let read = || self.nest.groups.iter().flat_map(|g| &g.statements).any(|s| s.reads.iter().any(|(_, r)| mine(&r.data)));
        let Some(container) = self.spec.containers.get(root).filter(|_| !read()) else { return Ok("") };
        let bytes = container.dtype.bytes(self.spec.shape(root)?.iter().product::<usize>() as u64);
        let late = self.spec.hands_back(root) || bytes as usize > largest_cache();
        Ok(if late { " | (host->late ? 8 : 0)" } else { " | (host->streams ? 8 : 0)" })
    }

    /// Scratch memory of at least this number of bytes.
    pub(super) fn room(&mut self, name: &str, bytes: usize) {
        let held = self.scratch.get(name).map_or(0, |(_, held)| *held);
        self.scratch.insert(name.to_string(), ("real", held.max(bytes)));
    }

    /// Packs the second factor once for all points, if it depends on its columns and the depth only and is used more than once.
    /// C texts of the packed operand, of its columns, and of the first column of the tile.
    fn prepare(
        &mut self,
        b: &Element,
        columns: &Option<GemmAxis>,
        steps: &Option<GemmAxis>,
        width: i64,
        [b_step, b_column, columns_block, jump, k, block]: [&str; 6],
        (bytes, types): (usize, i32),
    ) -> Result<Option<(Operand, String)>, KernelError> {
        let (Some(columns), Some(steps)) = (columns, steps) else { return Ok(None) };
        let Some(tile) = self.shared(b, columns, steps) else { return Ok(None) };
        let (whole, first) = match &tile {
            None => (columns.most, "0".to_string()),
            Some(tile) => {
                let inner = columns.most / tile.size;
                if (tile.size * inner) % width != 0 {
                    return Ok(None);
                }
                let step = self.given(format!("columns_{}", self.index(&tile.index)), tile.size * inner);
                (tile.count * inner, format!("{} * {step}", self.index(&tile.outer)))
            }
        };
        let from = self.beginning(b, columns, steps)?;
        let padded = (whole + width - 1) / width * width;
        let (number, elements, at_name) = self.reserve(padded * steps.most, bytes);
        let portion = PORTION * width;
        let whole_name = self.given(format!("whole{number}"), whole);
        let code = format!(
            "pack_chunks({from}, {b_step}, {b_column}, {columns_block}, {jump}, {types}, min_of({portion}, {whole_name} - at * {portion}), {k}, most, {block}, in_panels({whole_name}), at * {portion}, prepared + {at_name}, host->around);"
        );
        self.prepared.push(Prepared { data: b.data.clone(), elements, steps: (whole + portion - 1) / portion, code });
        let ready = (format!("prepared + {at_name}"), format!("in_panels({whole_name})"), String::new());
        Ok(Some((ready, first)))
    }

    /// Packs the first factor once for all points, if it depends on its rows and the depth only, is used more than once, and is
    /// better packed than read where it lies. As `prepare`, of rows.
    fn prepare_lines(
        &mut self,
        a: &Element,
        [rows, columns, steps]: [&Option<GemmAxis>; 3],
        [a_row, a_step, k, block, jump]: [&str; 5],
        (bytes, types): (usize, i32),
    ) -> Result<Option<Operand>, KernelError> {
        let (Some(rows), Some(columns), Some(steps), Some(products)) = (rows, columns, steps, self.nest.gemm) else { return Ok(None) };
        let Some(tile) = self.shared(a, rows, steps).filter(|_| !rows.ragged) else { return Ok(None) };
        let tiles = |axis: &GemmAxis| {
            let of = |index: &String| self.nest.tiles.iter().find(|t| t.index == *index).map_or(1, |t| (t.count + t.size - 1) / t.size);
            axis.indices.iter().map(of).product::<i64>()
        };
        let (m, whole, among) = (rows.most, rows.most * tiles(rows), (tiles(columns), columns.most));
        let pairs = types & 5 == 5;
        let lie = Lines {
            row: rows.strides[0].unwrap_or(0),
            step: steps.strides[0].unwrap_or(0),
            bytes: if pairs { bytes as i64 / 2 } else { bytes as i64 },
            // Narrow ones that are widened cannot be read where they lie, nor can those that jump.
            fixed: (types & 1 != 0 && !pairs) || steps.jumps[0].is_some(),
        };
        let width = products.block.width(bytes) as i64;
        if whole * steps.most > MOST_LINES || !lie.want_packing(products.block, width, among.0 * among.1, among) {
            return Ok(None);
        }
        let from = self.beginning(a, rows, steps)?;
        let (number, elements, at_name) = self.reserve(whole * (steps.most + 1), bytes);
        let panels = (m + products.block.height as i64 - 1) / products.block.height as i64;
        let portions = (panels + LINES - 1) / LINES;
        let [m, whole_name, panels, portions_name] = [("lines", m), ("whole", whole), ("panels", panels), ("portions", portions)]
            .map(|(name, value)| self.given(format!("{name}{number}"), value));
        let code = format!(
            "pack_lines({from}, {a_row}, {a_step}, {block}, {jump}, {types}, {m}, {k}, most, {whole_name}, at / {portions_name} * {m}, at % {portions_name} * {LINES}, min_of((at % {portions_name} + 1) * {LINES}, {panels}), prepared + {at_name}, host->around);"
        );
        self.prepared.push(Prepared { data: a.data.clone(), elements, steps: tiles(rows) * portions, code });
        let first = tile.map_or_else(|| "0".to_string(), |tile| format!("{} * {m}", self.index(&tile.outer)));
        Ok(Some((format!("prepared + {at_name}"), whole_name, first)))
    }

    /// Of an operand that depends on one side and the depth only and that several points use: the tile of that side, if it has one.
    fn shared(&self, operand: &Element, side: &GemmAxis, steps: &GemmAxis) -> Option<Option<Tile>> {
        if !self.is_given(&operand.data) || steps.ragged {
            return None;
        }
        let mine = |index: &str| side.indices.iter().chain(&steps.indices).any(|i| i == index);
        let tile = self.nest.tiles.iter().find(|t| side.indices.last() == Some(&t.index)).cloned();
        let depends = |index: &str| operand.subscripts.iter().any(|e| e.symbols().contains(index));
        let all_loops = self.nest.outer.iter().chain(self.nest.groups.iter().flat_map(|g| &g.loops));
        // A loop of one iteration does not tell points apart.
        let other = all_loops
            .clone()
            .any(|l| l.count != 1 && depends(&l.index) && !mine(&l.index) && tile.as_ref().is_none_or(|t| t.outer != l.index));
        let used_again = self.nest.outer.iter().any(|l| l.count > 1 && !depends(&l.index));
        (!other && used_again).then_some(tile)
    }

    /// C text of a pointer to the first element of an operand.
    fn beginning(&mut self, operand: &Element, side: &GemmAxis, steps: &GemmAxis) -> Result<String, KernelError> {
        let inner = self.nest.groups.iter().flat_map(|g| &g.loops).filter(|l| l.count == 1);
        let outer = self.nest.outer.iter().chain(inner).map(|l| &l.index);
        let zero = outer.chain(side.indices.iter().chain(&steps.indices)).map(|i| (i.clone(), Expr::Int(0))).collect();
        self.pointer(operand, &zero)
    }

    /// Room for an operand packed for all points: its number, its elements with those that vectors may touch beyond them, and C text of
    /// where it starts.
    pub(super) fn reserve(&mut self, elements: i64, bytes: usize) -> (usize, i64, String) {
        let number = self.prepared.len();
        let at: i64 = self.prepared.iter().map(|p| p.elements).sum();
        let elements = elements + 2 * 64 / bytes as i64;
        (number, (elements + 63) / 64 * 64, self.given(format!("prepared{number}"), at))
    }

    /// C text of a number that tells for which outer iterations an operand was packed; `None` if each point has its own.
    fn tag(&mut self, b: &Element, loops: &[GemmAxis], again: &[GemmAxis]) -> Option<String> {
        let depends = |index: &str| b.subscripts.iter().any(|e| e.symbols().contains(index));
        let inside = loops.iter().chain(again).any(|x| x.indices.iter().any(|i| depends(i)));
        let nest = self.nest;
        let used_again = nest.outer.iter().any(|l| l.count > 1 && !depends(&l.index));
        if inside || !used_again || !self.is_given(&b.data) {
            return None;
        }
        let mut text = "0".to_string();
        for each in nest.outer.iter().filter(|l| depends(&l.index)) {
            let (count, at) = (self.count(&each.index, each.count), self.index(&each.index));
            text = format!("({text} * {count} + {at})");
        }
        Some(text)
    }

    /// Whether nothing in this kernel writes a heap container.
    pub fn is_given(&self, data: &str) -> bool {
        let root = |data: &str| match self.nest.tensors.get(data).map(|t| &t.space) {
            Some(MemorySpace::Heap { root, .. }) => Some(root.clone()),
            _ => None,
        };
        let mine = root(data);
        let written = || self.nest.groups.iter().flat_map(|g| &g.statements).any(|s| root(&s.write.data) == mine);
        mine.is_some() && !written()
    }

    pub fn prepared_bytes(&self) -> usize {
        self.prepared.iter().map(|p| p.elements as usize * if self.double { 8 } else { 4 }).sum()
    }

    pub fn preparations(&self) -> i64 {
        self.prepared.iter().map(|p| p.steps).sum()
    }

    /// C of the steps `from` to `to` of all packing.
    pub fn preparing(&self) -> String {
        let mut text = "    for (int64_t step = from; step < to; ++step) {\n        int64_t at = step;\n".to_string();
        for prepared in &self.prepared {
            text += &format!("        if (at < {}) {{\n            {}\n            continue;\n        }}\n", prepared.steps, prepared.code);
            text += &format!("        at -= {};\n", prepared.steps);
        }
        text + "    }\n"
    }
}
