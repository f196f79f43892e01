//! Convolutions by windows of 3×3 in Winograd's form: tiles of results from fewer products, at the cost of larger rounding errors
//! (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", section 4; the bound is [`sdfg::tolerance`]'s).
//!
//! ```text
//! y = Σ_c k ∗ x_c    →    y = Aᵀ (Σ_c U_c ⊙ V_c) A, of tiles of m²
//!                         U_c = G k_c Gᵀ, once for all points     V_c = Bᵀ x_c B, of patches of (m+2)²
//! ```
//!
//! The sum over channels is (m+2)² matrix products of a few tiles by all channels, which the micro-kernels of direct products compute. Each
//! weight is used for these few tiles alone: micro-kernels ask for those of later calls while they multiply.
//! Images and results have vectors of channels. Patches and sums of a few tiles stay in a core's second cache; what follows the
//! convolution is computed when results leave it. The form is one of a kernel's configurations: other products of the kernel, and
//! convolutions that are none of these, are direct.

use super::DirectOperand;
use super::block_rows::BlockRows;
use super::epilogue::{DirectEpilogue, Touched};
use super::micro::{Brought, Clip, DepthLoop, EpilogueStrides, MicroKernel};
use super::next_rows::NextRows;
use super::product_axis::ProductAxis;
use crate::emit::printer::Prepared;
use crate::emit::scalar::{constant, integer, value};
use crate::error::KernelError;
use crate::loopnest::matmul_pattern::factors;
use crate::loopnest::{Element, LoopGroup, slope};
use crate::register_block;
use crate::target::cpu::emit::CPrinter;
use sdfg::{Expr, Scalar};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const TRANSFORMS: &str = include_str!("winograd.c");
/// Taps of a window along each dim.
const WINDOW: i64 = 3;
/// Bytes of patches and sums that are worked on at a time: at least what stays near, at most what a second cache of 2 MiB holds, in
/// between as much as the weights have, which are read once for them.
const LEAST_BYTES: i64 = 512 << 10;
const MOST_BYTES: i64 = 1536 << 10;

/// A dim of space: places of results, taps, and the dim of the image.
struct Space {
    place: ProductAxis,
    tap: ProductAxis,
    dim: usize,
}

/// Channels in vectors: blocks of them, if there are several, and the lanes of one.
struct Channels {
    blocks: Option<ProductAxis>,
    lanes: ProductAxis,
}

impl Channels {
    /// `None` if no axis has the lanes of one vector as neighbours in tensor `t`, or others are not one axis.
    fn of(axes: Vec<ProductAxis>, t: usize, lanes: i64) -> Option<Channels> {
        let (mut found, others): (Vec<ProductAxis>, Vec<ProductAxis>) = axes.into_iter().partition(|a| a.stride(t) == 1 && a.most == lanes);
        let mut others: Vec<ProductAxis> = others.into_iter().filter(|a| a.most > 1).collect();
        let (one, last, whole) = (found.pop()?, others.pop(), others.is_empty() && found.is_empty());
        (whole && !one.is_ragged()).then_some(Channels { blocks: last, lanes: one })
    }

    fn count(&self) -> i64 {
        self.blocks.as_ref().map_or(1, |a| a.most)
    }

    /// Blocks that tiles have.
    fn counts(&self) -> [i64; 2] {
        self.blocks.as_ref().map_or([1; 2], |a| [a.most, a.last])
    }

    fn apart(&self, t: usize) -> i64 {
        self.blocks.as_ref().map_or(0, |a| a.stride(t))
    }
}

/// A convolution that has this form.
struct Convolution {
    /// Results of a tile along each dim.
    m: i64,
    /// The numbers of image and weights among the operands.
    image: usize,
    weights: usize,
    space: [Space; 2],
    read: Channels,
    made: Channels,
    /// Other indices of images and results.
    others: Vec<ProductAxis>,
}

/// C text that several texts may have that are compiled together.
fn once(guard: &str, text: &str) -> String {
    format!("#ifndef MEMLET_{guard}\n#define MEMLET_{guard}\n{text}#endif\n")
}

impl CPrinter<'_> {
    /// Prints a group that is a convolution in the form that the configuration asks for; says whether it is one.
    pub fn winograd(&mut self, group: &LoopGroup, epilogue: Option<&DirectEpilogue>, level: usize) -> Result<bool, KernelError> {
        let asked = self.config.knobs.get("winograd").and_then(|m| m.parse::<i64>().ok());
        let (Some(m), Some(plan), [statement]) = (asked, self.nest.gemm, group.statements.as_slice()) else { return Ok(false) };
        let read = |connector: &str| statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e.clone());
        let found = factors(&statement.code).and_then(|f| Some((read(&f.a)?, read(&f.b)?, f.scale)));
        let Some((a, b, scale)) = found.filter(|_| !self.double) else { return Ok(false) };
        let elements = [&a, &b, &statement.write].map(|e| e.data.clone());
        if !elements[..2].iter().all(|data| self.is_given(data)) || group.loops.iter().any(|l| self.is_partly_made(&l.index)) {
            return Ok(false);
        }
        let operands = [self.in_place(a)?, self.in_place(b)?];
        let touched = epilogue.iter().flat_map(|e| &e.touched).map(|t| t.element.clone());
        let results: Vec<Element> = [statement.write.clone()].into_iter().chain(touched).collect();
        let axes = self.axes_of(group, &operands, &results, 1)?;
        let written = epilogue.iter().flat_map(|e| &e.touched).enumerate().filter(|(_, t)| t.is_written).map(|(n, _)| n + 3);
        let written: Vec<usize> = if epilogue.is_some() { written.collect() } else { vec![2] };
        let lanes = plan.block.vector as i64 / 4;
        match self.convolution(m, &operands, axes, &written, lanes) {
            Some(convolution) => {
                self.tell_lanes(&statement.write, epilogue, &convolution.made.lanes);
                self.in_tiles(group, &convolution, &operands, &results, (&scale, epilogue), lanes, level)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn in_place(&self, element: Element) -> Result<DirectOperand, KernelError> {
        let strides = self.strides(&element.data)?.0;
        Ok(DirectOperand::in_place(element, strides))
    }

    /// The convolution that two operands make; `None` if it is none of 3×3 with stride 1 between images in vectors of channels.
    fn convolution(
        &self,
        m: i64,
        operands: &[DirectOperand; 2],
        axes: Vec<ProductAxis>,
        written: &[usize],
        lanes: i64,
    ) -> Option<Convolution> {
        let name = |a: &ProductAxis| a.indices.first().cloned().unwrap_or_default();
        let has = |a: &ProductAxis, t: usize| a.strides.get(t).copied().flatten().is_some();
        let spaces = |image: usize| -> Vec<Space> {
            let weights = 1 - image;
            let taps = axes.iter().filter(|a| has(a, image) && has(a, weights) && !has(a, 2) && a.most == WINDOW && !a.is_ragged());
            let places: Vec<&ProductAxis> = axes.iter().filter(|a| has(a, image) && !has(a, weights) && has(a, 2)).collect();
            let subscripts = &operands[image].element.subscripts;
            let one = |e: &Expr, a: &ProductAxis| slope(e, &name(a)) == Some(Expr::Int(1));
            let of_tap = |tap: &ProductAxis| {
                let dim = subscripts.iter().position(|e| one(e, tap))?;
                let place = places.iter().find(|p| one(&subscripts[dim], p))?;
                Some(Space { place: (*place).clone(), tap: tap.clone(), dim })
            };
            taps.filter_map(of_tap).collect()
        };
        let (image, mut space) = [0, 1].into_iter().map(|t| (t, spaces(t))).find(|(_, found)| found.len() == 2)?;
        let weights = 1 - image;
        let second = space.pop()?;
        let space = [space.pop()?, second];
        if space[0].dim == space[1].dim {
            return None;
        }
        let used: BTreeSet<String> = space.iter().flat_map(|s| [name(&s.place), name(&s.tap)]).collect();
        let (mut read, mut made, mut others) = (vec![], vec![], vec![]);
        for axis in axes.iter().filter(|a| !used.contains(&name(a))) {
            match [image, weights, 2].map(|t| has(axis, t)) {
                [true, true, false] => read.push(axis.clone()),
                [false, true, true] => made.push(axis.clone()),
                [true, false, true] => others.push(axis.clone()),
                _ if axis.most == 1 => {}
                _ => return None,
            }
        }
        others.retain(|a| a.most > 1);
        let main = *written.first()?;
        let (read, made) = (Channels::of(read, image, lanes)?, Channels::of(made, main, lanes)?);
        let neighbours = written.iter().all(|t| made.lanes.stride(*t) == 1);
        let even = read.blocks.as_ref().is_none_or(|a| !a.is_ragged());
        (neighbours && even && self.may_pack(&operands[weights])).then_some(Convolution { m, image, weights, space, read, made, others })
    }

    /// Transforms the weights for all points. Returns C text of where those of this point begin, and elements between points of transforms.
    fn windows(&mut self, of: &Convolution, operands: &[DirectOperand; 2], lanes: i64) -> Result<(String, i64), KernelError> {
        let Convolution { m, weights, read, made, .. } = of;
        let operand = &operands[*weights];
        let element = operand.element.clone();
        let walked = |a: &ProductAxis, index: &str| a.indices.iter().any(|i| i == index);
        let own = |index: &str| {
            let channels = [&read.lanes, &made.lanes].into_iter().chain(&read.blocks);
            channels.chain(of.space.iter().map(|s| &s.tap)).any(|a| walked(a, index))
        };
        // Blocks of all results, whichever of them a tile makes.
        let symbols: Vec<String> = element.subscripts.iter().filter_map(|e| self.untiled(e).as_sym().map(String::from)).collect();
        let blocks = symbols.into_iter().find(|index| !own(index) && self.whole_count(index).is_some_and(|n| n > 1));
        let (count, apart) = match &blocks {
            Some(index) => (self.whole_count(index).unwrap_or(1), self.distance(&element, &operand.strides, index)?.unwrap_or(0)),
            None => (1, 0),
        };
        let depth = read.count() * lanes;
        let slab = count * depth * lanes;
        let (_, elements, at) = self.reserve((m + 2) * (m + 2) * slab, 4);
        let all = self.nest.outer.iter().chain(self.nest.groups.iter().flat_map(|g| &g.loops));
        let zero: BTreeMap<String, Expr> = all.map(|l| (l.index.clone(), Expr::Int(0))).collect();
        let from = self.pointer(&element, &zero)?;
        let t = *weights;
        let [row, column] = [0, 1].map(|n| of.space[n].tap.stride(t));
        let code = format!(
            "{{ const int64_t o = at / {blocks}, c = at % {blocks}; const real *const k = {from} + o * {apart} + c * {of_block}; \
             real *const to = prepared + {at} + (o * {blocks} + c) * {lanes} * VL; \
             for (int64_t l = 0; l < {lanes}; ++l) winograd_window_{m}(k + l * {of_lane}, {lane}, {row}, {column}, to + l * VL, {slab}); }}",
            blocks = read.count(),
            of_block = read.apart(t),
            of_lane = read.lanes.stride(t),
            lane = made.lanes.stride(t),
        );
        self.prepared.push(Prepared { data: element.data.clone(), elements, steps: count * read.count(), code });
        let mut first = "0".to_string();
        if let Some(index) = &blocks {
            if let Some(tile) = self.nest.tiles.iter().find(|t| t.index == *index) {
                first = format!("{} * {}", self.index(&tile.outer), tile.size);
            } else if self.nest.outer.iter().any(|l| l.index == *index) {
                first = self.index(index);
            }
        }
        Ok((format!("prepared + {at} + {first} * {}", depth * lanes), slab))
    }

    #[allow(clippy::too_many_arguments)]
    fn in_tiles(
        &mut self,
        group: &LoopGroup,
        of: &Convolution,
        operands: &[DirectOperand; 2],
        results: &[Element],
        (scale, epilogue): (&Scalar, Option<&DirectEpilogue>),
        lanes: i64,
        level: usize,
    ) -> Result<(), KernelError> {
        let Convolution { m, image, space, read, made, others, .. } = of;
        let (m, image) = (*m, *image);
        let Some(plan) = self.nest.gemm else { return Err(self.unsupported("it has no products".into())) };
        for (name, text) in
            [("winograd", TRANSFORMS.to_string()), (&format!("winograd_{m}"), once(&format!("WINOGRAD_{m}"), &format!("WINOGRAD({m})\n")))]
        {
            self.functions.insert(name.to_string(), text);
        }
        let (weights, slab) = self.windows(of, operands, lanes)?;
        let points = (m + 2) * (m + 2);
        let (depth, width) = (read.count() * lanes, made.count() * lanes);

        // Tiles that are worked on at a time, of each number that a point may have.
        let tiles = |n: i64| (n + m - 1) / m;
        let known = space.iter().all(|s| s.place.last > 0);
        let lasts = |s: &Space| if s.place.last == s.place.most { vec![s.place.most] } else { vec![s.place.most, s.place.last] };
        let mut counts: Vec<i64> =
            lasts(&space[0]).iter().flat_map(|h| lasts(&space[1]).into_iter().map(|w| tiles(*h) * tiles(w)).collect::<Vec<_>>()).collect();
        counts.dedup();
        let all = tiles(space[0].place.most) * tiles(space[1].place.most);
        let bytes = (points * depth * width * 4).clamp(LEAST_BYTES, MOST_BYTES);
        let room = (bytes / (points * (depth + width) * 4)).clamp(1, all);
        let many = (all + (all + room - 1) / room - 1) / ((all + room - 1) / room);
        let block = register_block::choose(plan.block, [many, 1], made.count(), false);
        let mut heights: BTreeSet<i64> = BTreeSet::new();
        for batch in counts.iter().flat_map(|n| [many.min(*n), n % many]).filter(|n| *n > 0) {
            heights.extend([block.rows[0].min(batch), batch % block.rows[0]].into_iter().filter(|n| *n > 0));
        }
        if !known {
            heights = (1..=block.rows[0]).collect();
        }
        let vectors = made.counts().into_iter().flat_map(|n| [block.vectors.min(n), n % block.vectors]);
        let vectors: BTreeSet<i64> = vectors.filter(|n| *n > 0).collect();
        let wide = made.blocks.as_ref().map_or_else(|| "1".to_string(), |a| format!("({})", a.count));
        // Rows do not begin at equal places of the first cache.
        let (patch_row, sum_row) = (depth + lanes, width + lanes);
        let (patch_slab, sum_slab) = (many * patch_row, many * sum_row);
        self.room("patches", (points * patch_slab * 4) as usize);
        self.room("sums", (points * sum_slab * 4) as usize);

        let zero: BTreeMap<String, Expr> = group.loops.iter().map(|l| (l.index.clone(), Expr::Int(0))).collect();
        let source = &operands[image].element;
        let shape = self.tensor(&source.data)?.shape.clone();
        let from = self.pointer(&Element { fill: None, ..source.clone() }, &zero)?;
        let [low_h, low_w] = [0, 1].map(|n| integer(&source.subscripts[space[n].dim].substitute(&zero), self));
        let [height, breadth] = [0, 1].map(|n| shape[space[n].dim]);
        let fill = constant(source.fill.map_or(0.0, f64::from_bits), false);
        let mut pointers = Vec::new();
        for (n, element) in results.iter().enumerate() {
            let absent = n == 0 && epilogue.is_some();
            pointers.push(if absent { String::new() } else { self.pointer(element, &zero)? });
        }
        let (add, scale) = (self.adds(&results[0], &[])?, value(scale, self));
        let [rows, columns] = [0, 1].map(|n| format!("({})", space[n].place.count));

        let name = group.statements[0].name.replace("*/", "");
        let place = |name: &str, t: usize, more: &[(&str, i64)]| {
            let loops = others.iter().enumerate().map(|(n, a)| (format!("n{n}"), a.stride(t)));
            let more = more.iter().map(|(index, stride)| (index.to_string(), *stride));
            let terms = loops.chain(more).filter(|(_, stride)| *stride != 0).map(|(index, stride)| format!("{index} * {stride}"));
            [name.to_string()].into_iter().chain(terms).collect::<Vec<_>>().join(" + ")
        };
        self.line(level, format!("/* {name}: F({m}×{m}, 3×3) */"));
        self.line(level, "{");
        let mut at = level + 1;
        self.line(at, format!("const real *const x = {from}, *const w = {weights};"));
        match epilogue {
            None => self.line(at, format!("real *const c = {};", pointers[0])),
            Some(e) => {
                for (n, (touched, pointer)) in e.touched.iter().zip(&pointers[1..]).enumerate() {
                    let constant = if touched.is_written { "" } else { "const " };
                    self.line(at, format!("{constant}real *const t{n} = {pointer};"));
                }
            }
        }
        self.line(at, format!("const int64_t low_h = {low_h}, low_w = {low_w}, rows = {rows}, columns = {columns};"));
        self.line(at, format!("const int64_t across = (columns + {}) / {m}, tiles = (rows + {}) / {m} * across;", m - 1, m - 1));
        for (n, axis) in others.iter().enumerate() {
            self.line(at, format!("for (int64_t n{n} = 0; n{n} < {}; ++n{n})", axis.count));
        }
        self.line(at, format!("for (int64_t first = 0; first < tiles; first += {many}) {{"));
        at += 1;
        self.line(at, format!("const int64_t many = min_of({many}, tiles - first);"));
        let walk = |printer: &mut Self| {
            printer.line(at, "for (int64_t t = 0; t < many; ++t) {");
            printer.line(at + 1, format!("const int64_t u = (first + t) / across * {m}, v = (first + t) % across * {m};"));
        };
        let [h, w] = [0, 1].map(|n| space[n].place.stride(image));
        walk(self);
        self.line(at + 1, "const int64_t h = low_h + u, w = low_w + v;");
        self.line(at + 1, format!("const real *const patch = {};", place("x", image, &[("u", h), ("v", w)])));
        self.line(at + 1, format!("real *const to = patches + t * {patch_row};"));
        let inside = format!("h >= 0 && h + {0} <= {height} && w >= 0 && w + {0} <= {breadth}", m + 2);
        let blocks = format!("for (int64_t b = 0; b < {}; ++b)", read.count());
        let arguments = format!("(patch + b * {}, {h}, {w}", read.apart(image));
        self.line(at + 1, format!("if ({inside})"));
        self.line(at + 2, format!("{blocks} winograd_patch_{m}{arguments}, to + b * {lanes}, {patch_slab});"));
        self.line(at + 1, "else");
        let place_of = format!("h, w, {height}, {breadth}, {fill}");
        self.line(at + 2, format!("{blocks} winograd_border_{m}{arguments}, {place_of}, to + b * {lanes}, {patch_slab});"));
        self.line(at, "}");

        self.line(at, format!("for (int64_t point = 0; point < {points}; ++point)"));
        self.line(at, format!("for (int64_t o = 0; o < {wide}; o += {})", block.vectors));
        let (apart, calls) = (depth * lanes, (many + block.rows[0] - 1) / block.rows[0]);
        let brings = if calls <= 2 * block.vectors { (block.vectors + calls - 1) / calls } else { 0 };
        self.line(at, "{");
        if brings > 0 {
            let next = format!("o + {0} < {wide} ? {1} : {slab} - o * {apart}", block.vectors, block.vectors * apart);
            self.line(at, format!("const int64_t next = {next};"));
        }
        self.line(at, format!("for (int64_t r = 0; r < many; r += {}) {{", block.rows[0]));
        self.line(
            at + 1,
            format!("const int64_t height = min_of({}, many - r), breadth = min_of({}, {wide} - o);", block.rows[0], block.vectors),
        );
        for rows in &heights {
            for vectors in &vectors {
                let kernel = MicroKernel {
                    lanes,
                    vectors: *vectors,
                    rows: BlockRows::Rectangle([*rows, 1]),
                    depth: vec![DepthLoop { count: depth, strides: [lanes, 1], clip: Clip::None }],
                    vector: [depth * lanes, 1],
                    row: [patch_row, 0],
                    whole: [true, true],
                    other: None,
                    out_rows: [sum_row, 0],
                    out: [lanes, 1],
                    last_is_partial: true,
                    epilogue: None,
                    brings: (brings > 0).then_some(Brought { vectors: brings, every: 1 }),
                    next: NextRows::default(),
                    brings_results: false,
                };
                let (name, text) = kernel.code();
                self.functions.insert(name.clone(), text);
                let from = format!("w + point * {slab} + o * {}, patches + point * {patch_slab} + r * {patch_row}", depth * lanes);
                let to = format!("sums + point * {sum_slab} + r * {sum_row} + o * {lanes}");
                let ahead = match brings {
                    0 => String::new(),
                    _ => format!(", next + r / {} * {}", block.rows[0], brings * apart),
                };
                self.line(
                    at + 1,
                    format!("if (height == {rows} && breadth == {vectors}) {name}({from}, {to}, 0, {scale}, {}{ahead});", vectors * lanes),
                );
            }
        }
        self.line(at, "}");
        self.line(at, "}");

        let end = self.results(of, epilogue, lanes);
        walk(self);
        self.line(at + 1, format!("for (int64_t o = 0; o < {wide}; ++o)"));
        let of_result = |name: &str, t: usize| {
            place(name, t, &[("u", space[0].place.stride(t)), ("v", space[1].place.stride(t)), ("o", made.apart(t))])
        };
        let targets: String = match epilogue {
            None => format!(", {}, {add}", of_result("c", 2)),
            Some(e) => (0..e.touched.len()).map(|n| format!(", {}", of_result(&format!("t{n}"), n + 3))).collect(),
        };
        let from = format!("sums + t * {sum_row} + o * {lanes}, {sum_slab}");
        self.line(at + 2, format!("{end}({from}, min_of({m}, rows - u), min_of({m}, columns - v){targets});"));
        self.line(at, "}");
        self.line(level + 1, "}");
        self.line(level, "}");
        Ok(())
    }

    /// Adds the function that makes results of sums at all points, and computes what follows. Returns its name.
    fn results(&mut self, of: &Convolution, epilogue: Option<&DirectEpilogue>, lanes: i64) -> String {
        let Convolution { m, space, made, .. } = of;
        let place = |t: usize, touched: Option<&Touched>| EpilogueStrides {
            rows: [0, 1].map(|n| space[n].place.stride(t)),
            vector: made.apart(t),
            lane: made.lanes.stride(t),
            is_written: touched.is_none_or(|t| t.is_written),
        };
        let mut inner = format!("const real sum = room[(a * {m} + b) * VL + l];\n");
        let offset = |n: usize, EpilogueStrides { rows: [a, b], lane, .. }: &EpilogueStrides| {
            let terms = [("a", *a), ("b", *b), ("l", *lane)].into_iter().filter(|(_, stride)| *stride != 0);
            let terms: Vec<String> = terms.map(|(index, stride)| format!("{index} * {stride}")).collect();
            format!("const int64_t o{n} = {};\n", if terms.is_empty() { "0".into() } else { terms.join(" + ") })
        };
        let parameters = match epilogue {
            None => {
                inner += &offset(0, &place(2, None));
                inner += "c[o0] = add ? c[o0] + sum : sum;\n";
                ", real *restrict c, int64_t add".to_string()
            }
            Some(e) => {
                for (n, touched) in e.touched.iter().enumerate() {
                    inner += &offset(n, &place(n + 3, Some(touched)));
                }
                inner += &e.text;
                let pointer = |(n, touched): (usize, &Touched)| format!(", {}real *t{n}", if touched.is_written { "" } else { "const " });
                e.touched.iter().enumerate().map(pointer).collect()
            }
        };
        let mut body =
            format!("    real room[{m} * {m} * VL] __attribute__((aligned(64)));\n    winograd_result_{m}(from, apart, room);\n");
        for (test, rows, columns) in [
            (format!("if (rows == {m} && columns == {m}) "), m.to_string(), m.to_string()),
            (String::new(), "rows".into(), "columns".into()),
        ] {
            let _ = writeln!(body, "    {test}{{\n        for (int64_t a = 0; a < {rows}; ++a) for (int64_t b = 0; b < {columns}; ++b) {{");
            let _ = writeln!(body, "            #pragma omp simd\n            for (int64_t l = 0; l < {lanes}; ++l) {{");
            inner.lines().for_each(|line| _ = writeln!(body, "                {line}"));
            let _ = writeln!(body, "            }}\n        }}\n        return;\n    }}");
        }
        let name = format!("winograd_end_{}", &blake3::hash(body.as_bytes()).to_hex()[..16]);
        let given = format!("const real *restrict from, int64_t apart, int64_t rows, int64_t columns{parameters}");
        let text = format!("static __attribute__((noinline)) void {name}({given})\n{{\n{body}}}\n");
        self.functions.insert(name.clone(), once(&name.to_uppercase(), &text));
        name
    }
}
