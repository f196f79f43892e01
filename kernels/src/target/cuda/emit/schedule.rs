//! How the threads of a GPU share a loop nest, and where intermediates are held.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::{Element, ForLoop, LoopGroup, LoopNest, MemorySpace, NestStatement, NestTensor, Tag};
use indexmap::IndexMap;
use sdfg::config::KernelConfig;
use sdfg::{Dtype, Expr, Scalar};

/// The knob of kernels that prefetch the next point, and its values.
pub const PREFETCH_KNOB: &str = "next";
pub const PREFETCH: [&str; 2] = ["wait", "ahead"];
/// Threads of a warp.
pub const WARP: i64 = 32;
/// Values that one thread may hold of one container: more of them spill.
const REGISTERS: i64 = 64;
/// Most values of a container that every thread of a team holds a copy of.
const COPIES: i64 = 16;
/// Shared memory that every block may have without asking for more, in bytes.
const SHARED: i64 = 48 << 10;
/// Above this many elements or points, indices take 64 bits; half of what 32 bits hold, because loops step beyond their ends.
const NARROW: i64 = 1 << 30;

/// Where the elements of an intermediate are while a point is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Registers: every thread of the team has all elements.
    Replicated,
    /// Registers: each thread has the elements that it computes; `along` is the dim that the team shares, if it is a dim of
    /// the container.
    Owned {
        along: Option<usize>,
    },
    /// Registers: in a streamed tile eight neighbours of each of a lane's rows (`Strip`), and one value of each of these rows (`Line`).
    Strip,
    Line,
    /// Shared memory of the block, a part for each team.
    Shared,
    /// Global memory, a part for each team.
    Scratch,
}

/// Knobs of a CUDA kernel and what follows from them.
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadSchedule {
    /// Threads of a block.
    pub threads: i64,
    /// Points that a block works on at a time; each has a team of `threads / rows` threads.
    pub rows: i64,
    /// Neighbours along the innermost loop that one thread takes.
    pub width: i64,
    /// Unrolling of loops over a team's rows where registers do not ask for more.
    pub unroll: i64,
    /// Whether values read by several groups are kept in registers between them: one loop instead of two.
    pub keeps: bool,
    /// Whether rows of the next point are read while sums of this one meet, see [`prefetch`](super::prefetch).
    pub prefetches: bool,
    /// Whether indices take 64 bits.
    pub wide: bool,
    /// Whether results whose neighbours along the vectors lie far apart are transposed on their way out.
    pub turns: bool,
    pub places: IndexMap<String, Placement>,
    /// Values that are kept in registers from one group to the next, and their names.
    pub kept: IndexMap<Element, String>,
}

/// Threads of a block and points at a time, by knob.
fn shape(spec: &KernelSpec, config: &KernelConfig) -> Result<(i64, i64, i64), KernelError> {
    let number = |key: &str, default: i64, allowed: &str, fits: &dyn Fn(i64) -> bool| match config.knobs.get(key) {
        None => Ok(default),
        Some(text) => text.parse().ok().filter(|n| fits(*n)).ok_or_else(|| KernelError::Knob {
            kernel: spec.name.clone(),
            key: key.into(),
            value: text.into(),
            allowed: allowed.into(),
        }),
    };
    let power = |least: i64, most: i64| move |n: i64| (least..=most).contains(&n) && n & (n - 1) == 0;
    let threads = number("threads", 256, "32, 64, 128, 256, 512, 1024", &power(WARP, 1024))?;
    let team = |rows: i64| rows == 1 || threads / rows <= WARP;
    let rows = number("rows", threads / WARP, "1, or a power of two that leaves each row at most 32 threads", &|n| {
        power(1, threads)(n) && team(n)
    })?;
    Ok((threads, rows, number("width", 4, "1, 2, 4, 8", &power(1, 8))?))
}

/// Iterations of a block of an outer vector index: one strip of each thread of a team.
///
/// # Errors
/// Knobs that kernels do not have.
pub fn lanes(spec: &KernelSpec, config: &KernelConfig) -> Result<i64, KernelError> {
    let (threads, rows, width) = shape(spec, config)?;
    Ok(threads / rows * width)
}

impl ThreadSchedule {
    /// The schedule of a nest under the knobs `threads`, `rows`, `width`, `unroll`, `loops` (`one` or `two`), `hold` (`registers` or
    /// `shared`), `out` (`direct` or `turned`), `next` (`wait` or `ahead`). Absent knobs: 256, a warp for each row, 4, 4, `one`,
    /// `registers`, `direct`, `wait`.
    ///
    /// # Errors
    /// Knobs that kernels do not have.
    pub fn new(spec: &KernelSpec, nest: &LoopNest, config: &KernelConfig) -> Result<Self, KernelError> {
        let (threads, rows, width) = shape(spec, config)?;
        let choice = |key: &str, options: [&str; 2]| match config.knobs.get(key) {
            None => Ok(true),
            Some(text) if options.contains(&text) => Ok(text == options[0]),
            Some(text) => {
                Err(KernelError::Knob { kernel: spec.name.clone(), key: key.into(), value: text.into(), allowed: options.join(", ") })
            }
        };
        let unroll = match config.knobs.get("unroll") {
            None => 4,
            Some(text) => text.parse().ok().filter(|n| (1..=16).contains(n)).ok_or_else(|| KernelError::Knob {
                kernel: spec.name.clone(),
                key: "unroll".into(),
                value: text.into(),
                allowed: "1 to 16".into(),
            })?,
        };
        let prefetches = !choice(PREFETCH_KNOB, PREFETCH)?;
        let (keeps, registers) = (choice("loops", ["one", "two"])?, choice("hold", ["registers", "shared"])?);
        let elements = |t: &NestTensor| t.shape.iter().fold(1i64, |a, b| a.saturating_mul(*b));
        // Strips go beyond the end of the loop that vectors run along.
        let strip = threads / rows * width;
        let whole = |l: &ForLoop, along: bool| if along { (l.count + strip - 1) / strip * strip } else { l.count };
        let points = nest.outer.iter().fold(1i64, |n, l| n.saturating_mul(whole(l, l.tag == Tag::Block)));
        let blocked = |l: &&ForLoop| nest.block().is_none_or(|b| b.index != l.index);
        let last = |g: &LoopGroup, l: &ForLoop| g.loops.last().is_some_and(|last| last.index == l.index);
        // Products find their factors from where they begin: nothing counts all of their steps.
        let walked = nest.groups.iter().filter(|g| !g.is_gemm);
        let inner = walked.map(|g| g.loops.iter().filter(blocked).fold(1i64, |n, l| n.saturating_mul(whole(l, last(g, l)))));
        let inner = inner.max().unwrap_or(1);
        // A view lies somewhere in its storage, which may be larger.
        let storage = |t: &NestTensor| match &t.space {
            MemorySpace::Heap { root, .. } => {
                spec.shape(root).map_or(i64::MAX, |shape| shape.iter().fold(1, |n, d| n.saturating_mul(*d as i64)))
            }
            _ => elements(t),
        };
        let wide = points.saturating_mul(inner) >= NARROW || nest.tensors.values().any(|t| storage(t) >= NARROW);
        let turns = !choice("out", ["direct", "turned"])?;
        let mut schedule =
            ThreadSchedule { threads, rows, width, unroll, keeps, prefetches, wide, turns, places: IndexMap::new(), kept: IndexMap::new() };
        let real = if nest.tensors.values().any(|t| t.dtype == Dtype::F64) { 8 } else { 4 };
        let turning = if turns { schedule.turned() * real + rows * 12 } else { 0 };
        // What rows draw together of masks has two bytes for each value.
        let drawn = if may_draw_together(nest, rows) { masks(nest) * 2 * threads * width } else { 0 };
        // Partial results of rows meet there.
        let private = nest.tensors.values().any(|t| matches!(t.space, MemorySpace::Private { .. }));
        let gathered = if private && rows > 1 { threads * width * real } else { 0 };
        // What warps of a team combine lies there twice.
        let sums = |g: &LoopGroup| g.statements.iter().filter(|s| s.combine.is_some()).count() as i64;
        let meeting = if threads / rows > WARP { 2 * nest.groups.iter().map(sums).max().unwrap_or(0) * (threads / WARP) * real } else { 0 };
        let mut shared = meeting.max(WARP * 8) + turning + drawn + gathered;
        if shared > SHARED {
            let [key, value, allowed] = match turns {
                true => ["out", "turned", "direct, where a block's strips do not fit its shared memory"],
                false => ["width", &width.to_string(), "less, where what a block's rows put together does not fit its shared memory"],
            };
            let (kernel, key, value, allowed) = (spec.name.clone(), key.into(), value.into(), allowed.into());
            return Err(KernelError::Knob { kernel, key, value, allowed });
        }
        for (data, tensor) in &nest.tensors {
            // Every array begins at a multiple of 16 bytes.
            let bytes = elements(tensor).saturating_mul(rows * real).saturating_add(15) / 16 * 16;
            let fits = shared + bytes <= SHARED;
            let place = match tensor.space {
                MemorySpace::Heap { .. } => continue,
                MemorySpace::Local | MemorySpace::Kept => schedule.local(nest, data, tensor, fits && !registers, fits),
                MemorySpace::Private { .. } => schedule.private(nest, data, tensor),
            };
            if place == Placement::Shared {
                shared += bytes;
            }
            schedule.places.insert(data.clone(), place);
        }
        Ok(schedule)
    }

    /// Values of the tile that results are transposed in: a strip of every row, one more after each run of rows and of lanes, so that
    /// neither the writing threads nor the reading ones meet in a bank. As `turn_rows` of the prelude finds them.
    pub fn turned(&self) -> i64 {
        self.width * (self.team() * (self.rows + 1) + self.rows)
    }

    /// Threads that share a point.
    pub fn team(&self) -> i64 {
        self.threads / self.rows
    }

    /// Strips of each thread along a loop.
    pub fn slots(&self, nest: &LoopNest, along: &ForLoop) -> i64 {
        let lanes = self.team() * self.width;
        if nest.block().is_some_and(|b| b.index == along.index) { 1 } else { (along.count + lanes - 1) / lanes }
    }

    fn local(&self, nest: &LoopNest, data: &str, tensor: &NestTensor, shared: bool, fits: bool) -> Placement {
        if nest.per_lane(tensor) {
            return Placement::Owned { along: None };
        }
        let elements: i64 = tensor.shape.iter().product();
        let uses_last = |(group, element, _): &(&LoopGroup, &Element, bool)| {
            group.loops.last().is_some_and(|l| element.subscripts.iter().any(|s| s.symbols().contains(&l.index)))
        };
        let uses: Vec<(&LoopGroup, &Element, bool)> = uses(nest, data).collect();
        if elements <= COPIES && !uses.iter().any(|u| u.2 && uses_last(u)) {
            return Placement::Replicated;
        }
        let along = (0..tensor.shape.len()).find(|n| {
            uses.iter().all(|(group, element, _)| {
                group.loops.last().is_some_and(|l| {
                    element.subscripts[*n] == Expr::sym(l.index.as_str())
                        && l.count == tensor.shape[*n]
                        && element.subscripts.iter().filter(|s| s.symbols().contains(&l.index)).count() == 1
                })
            })
        });
        match along {
            Some(n) if !shared => {
                let lanes = self.team() * self.width;
                let held = elements / tensor.shape[n] * ((tensor.shape[n] + lanes - 1) / lanes) * self.width;
                if held <= REGISTERS || !fits { Placement::Owned { along } } else { Placement::Shared }
            }
            _ if fits => Placement::Shared,
            _ => Placement::Scratch,
        }
    }

    fn private(&self, nest: &LoopNest, data: &str, tensor: &NestTensor) -> Placement {
        let Some((group, statement)) = writer(nest, data) else { return Placement::Scratch };
        let last = group.loops.last();
        let along = last.and_then(|l| statement.write.subscripts.iter().position(|s| *s == Expr::sym(l.index.as_str())));
        let inner: i64 = self.dims(nest, data, tensor).iter().filter(|n| Some(**n) != along).map(|n| tensor.shape[*n]).product();
        let strips = last.filter(|_| along.is_some()).map_or(1, |l| self.slots(nest, l) * self.width);
        match along {
            _ if inner * strips > REGISTERS => Placement::Scratch,
            None => Placement::Replicated,
            Some(_) => Placement::Owned { along },
        }
    }

    /// Dims of a container that its registers have: all of an intermediate, those of inner loops of a partial result.
    pub fn dims(&self, nest: &LoopNest, data: &str, tensor: &NestTensor) -> Vec<usize> {
        let all = 0..tensor.shape.len();
        if tensor.space == MemorySpace::Local {
            return all.collect();
        }
        let Some((_, statement)) = writer(nest, data) else { return vec![] };
        let outer = |n: &usize| nest.outer.iter().any(|l| statement.write.subscripts[*n] == Expr::sym(l.index.as_str()));
        all.filter(|n| !outer(n)).collect()
    }
}

/// Elements that one block of random numbers decides about.
const EIGHT: i64 = 8;

/// Whether rows of a block may draw masks together: each has a point of its own, next to one another.
pub fn may_draw_together(nest: &LoopNest, rows: i64) -> bool {
    let block = nest.outer.last().is_none_or(|points| points.tag == Tag::Block);
    let private = nest.tensors.values().any(|t| matches!(t.space, MemorySpace::Private { .. }));
    nest.gemm.is_none() && !private && !block && rows % EIGHT == 0
}

/// Masks that groups draw, each once in a group.
fn masks(nest: &LoopNest) -> i64 {
    let of = |group: &LoopGroup| {
        let mut found: Vec<Scalar> = Vec::new();
        for statement in &group.statements {
            statement.code.walk(&mut |s| {
                if matches!(s, Scalar::Keep { .. }) && !found.contains(s) {
                    found.push(s.clone());
                }
            });
        }
        found.len() as i64
    };
    nest.groups.iter().map(of).sum()
}

/// Every access to a container: its group, the element, whether it is written.
fn uses<'a>(nest: &'a LoopNest, data: &'a str) -> impl Iterator<Item = (&'a LoopGroup, &'a Element, bool)> {
    nest.groups.iter().flat_map(move |g| {
        let each = g.statements.iter().flat_map(|s| s.reads.iter().map(|(_, e)| (e, false)).chain([(&s.write, true)]));
        each.filter(move |(e, _)| e.data == data).map(move |(e, written)| (g, e, written))
    })
}

/// The statement that makes a partial result, and its group.
pub fn writer<'a>(nest: &'a LoopNest, data: &str) -> Option<(&'a LoopGroup, &'a NestStatement)> {
    nest.groups.iter().find_map(|g| g.statements.iter().find(|s| s.write.data == data).map(|s| (g, s)))
}
