//! A loop nest as CUDA C: prelude, the kernel, and the kernel that combines partial results.
//!
//! The outer maps are one flattened range of points. A block works on `rows` of them at a time, each with a team of threads
//! that shares the innermost loop: lanes of one warp, a warp, or the whole block. If vectors run along an outer index, the
//! strips of a team's threads are one block of that index. All blocks lie along x, the only direction without a small limit.

mod dialect;
mod group;
pub mod prefetch;
mod register;
pub(crate) mod schedule;
mod shared_masks;
mod split_reduction;
mod template;
mod tile;
mod transposed_store;

pub(crate) use dialect::{Cuda, CudaPrinter};
pub use schedule::{Placement, ThreadSchedule, WARP, lanes};
pub use split_reduction::{elements_first, partials};
pub(super) use template::{map_template, tile_template};

use crate::emit::functions;

use crate::error::KernelError;
use crate::kernel::{ArgumentAccess, KernelSpec};
use crate::loopnest::{BankedRows, LoopNest, MemorySpace, Tag};
use crate::runtime::dropout::Mask;
use crate::target::cpu::emit::header;
use register::cuda_type;
use sdfg::config::KernelConfig;
use sdfg::interpret::Run;
use sdfg::{Dtype, philox};
use split_reduction::{FINISH_THREADS, Sections};

/// Shared memory has 32 banks; rows of a tile begin 8 banks apart, so that neither those who write nor those who read them meet in one.
pub(crate) const BANKS: BankedRows = BankedRows { banks: 32, gap: 8 };
/// Largest grid along x.
const GRID: i64 = i32::MAX as i64;
/// Threads of a processor that leave each of them 128 registers, and 42.
const SPACIOUS: i64 = 512;
pub const LEAN: i64 = 1536;
/// Memory for the parts of all teams, or sections.
const SCRATCH: i64 = 64 << 20;

/// What kernels are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chip {
    /// Shared memory that a block can be given, in bytes.
    pub shared: i64,
    pub processors: i64,
    /// Whether they multiply pairs of bf16.
    pub tensor_cores: bool,
}

impl Chip {
    /// What an H200 has; the shim has as much.
    pub const HOPPER: Chip = Chip { shared: 227 << 10, processors: 132, tensor_cores: true };

    /// Blocks of a kernel with partial results: two for each processor.
    pub fn blocks(self) -> i64 {
        2 * self.processors
    }
}

/// A CUDA file and its launch parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaSource {
    pub text: String,
    pub integers: Vec<i64>,
    pub masks: Vec<Mask>,
    /// Blocks and threads of `memlet_kernel`.
    pub grid: i64,
    pub threads: i64,
    /// Parts of scratch memory: one for each team, or for each section of a split reduction.
    pub teams: i64,
    /// Values (`real`) of one part.
    pub scratch: i64,
    pub double: bool,
    /// Bytes of shared memory that a block of `memlet_kernel` is given besides what the text declares.
    pub shared: i64,
    /// Blocks and threads of `memlet_finish`, if there are partial results.
    pub finish: Option<(i64, i64)>,
    /// The kernels that are launched as this one; empty where it is one.
    pub members: Vec<Member>,
}

/// One of several kernels that are launched together.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Numbers of its arguments among those of all.
    pub arguments: Vec<usize>,
    pub source: CudaSource,
}

impl CudaSource {
    /// The argument of both kernels: `struct Arguments` of the text, in words of 8 bytes. `draw` is where [`drawn`] words lie.
    pub fn pack(&self, pointers: &[u64], scratch: u64, draw: u64) -> Vec<u64> {
        if !self.members.is_empty() {
            let own = |m: &Member| m.arguments.iter().filter_map(|n| pointers.get(*n).copied()).collect::<Vec<u64>>();
            return self.members.iter().flat_map(|m| m.source.pack(&own(m), scratch, draw)).collect();
        }
        let mut words = pointers.to_vec();
        words.resize(pointers.len().max(1), 0);
        words.extend([scratch, draw]);
        words.extend(self.integers.iter().map(|n| *n as u64));
        words.resize(words.len() + usize::from(self.integers.is_empty()), 0);
        for mask in &self.masks {
            let threshold = philox::dropped(mask.rate);
            let factor = 65536.0 / f64::from(65536 - threshold);
            words.extend([philox::hash(&mask.stream), factor.to_bits(), u64::from(threshold)]);
        }
        words.resize(words.len() + if self.masks.is_empty() { 3 } else { 0 }, 0);
        words
    }
}

/// Words of a run's random state.
pub const DRAWN: usize = 3;

/// What all kernels of a run find in memory: what decides about their masks.
pub fn drawn(run: &Run) -> [u64; DRAWN] {
    [run.seed, run.step, u64::from(run.dropout)]
}

/// A member of a group: what it is, its nest and configuration, and the numbers of its arguments among those of all.
pub type Lowered = (KernelSpec, LoopNest, KernelConfig, Vec<usize>);

/// Prints several nests with products, each under its configuration, as one launch. Each comes with the numbers of its arguments among
/// those of all.
///
/// # Errors
/// As [`emit`]; nests that cannot be launched together.
pub fn emit_group(name: &str, nests: &[Lowered], chip: Chip) -> Result<CudaSource, KernelError> {
    let part = |(spec, nest, config, _): &Lowered, stages: Option<i64>| {
        let staged = stages.map(|stages| KernelConfig { knobs: config.knobs.clone().with("stages", stages), ..config.clone() });
        let config = staged.as_ref().unwrap_or(config);
        let mut printer = CudaPrinter::new(spec, nest, config, nest.tensors.values().any(|t| t.dtype == Dtype::F64), Cuda::default());
        printer.dialect.schedule = Some(ThreadSchedule::new(spec, nest, config)?);
        tile::part(printer, split_reduction::partials(nest).next().is_some(), chip)
    };
    let all = |stages| nests.iter().map(|member| Ok((part(member, stages)?, member.3.clone()))).collect::<Result<Vec<_>, KernelError>>();
    let mut parts = all(None)?;
    // They share one text, and with it the number of parts of the ring.
    if let Some(least) = parts.iter().map(|(part, _)| part.stages).min()
        && parts.iter().any(|(part, _)| part.stages > least)
    {
        parts = all(Some(least))?;
    }
    let apart = || "its members have partial results, scratch memory, or blocks of different sizes".to_string();
    tile::emit_group(parts).ok_or_else(|| KernelError::Unsupported { kernel: name.to_string(), what: apart() })
}

/// Prints a loop nest that was lowered with the [`lanes`] of the configuration.
///
/// # Errors
/// Knobs, element types and accesses that kernels do not have; partial results that need too much memory.
pub fn emit(spec: &KernelSpec, nest: &LoopNest, config: &KernelConfig, chip: Chip) -> Result<CudaSource, KernelError> {
    let double = nest.tensors.values().any(|t| t.dtype == Dtype::F64);
    let mut printer = CudaPrinter::new(spec, nest, config, double, Cuda::default());
    let mut schedule = ThreadSchedule::new(spec, nest, config)?;
    schedule.turns = transposed_store::turns(&printer, &schedule);
    printer.dialect.schedule = Some(schedule.clone());
    let private = split_reduction::partials(nest).next().is_some();
    if nest.gemm.is_some() {
        return tile::emit(printer, private, chip);
    }

    let wanted = blocks(spec, config, chip)?;
    // Whether blocks have several points each, as many blocks as are meant to run at a time.
    let stays = private || config.knobs.get("blocks").is_some();
    let sections = if private { printer.sections(wanted) } else { None };
    if private {
        printer.begin_partials(sections.is_none(), 1)?;
    }
    let begin = std::mem::take(&mut printer.text);
    printer.cuda_groups(2)?;
    if private && sections.is_none() {
        printer.flush_partials(2)?;
    }
    let body = std::mem::take(&mut printer.text);
    let finish = if private { Some(printer.finish_partials()?) } else { None };
    let finish_body = std::mem::take(&mut printer.text);
    if sections.is_some() {
        printer.write_partials(1)?;
    }
    let end = std::mem::take(&mut printer.text);

    // Parts of a team in global memory: partial results first.
    let (mut scratch, mut parts) = (0i64, Vec::new());
    for (data, tensor) in &nest.tensors {
        let elements: i64 = tensor.shape.iter().product();
        if matches!(tensor.space, MemorySpace::Private { .. }) || schedule.places.get(data) == Some(&Placement::Scratch) {
            let name = printer.identifier(data);
            printer.given(format!("at_{name}"), scratch);
            parts.push((data.clone(), name));
            scratch += elements;
        }
    }
    let points = nest.points();
    let mut grid = ((points + schedule.rows - 1) / schedule.rows).min(GRID);
    let bytes = scratch * if double { 8 } else { 4 };
    let mut teams = grid * schedule.rows;
    if let Some(sections) = &sections {
        teams = sections.count.min((SCRATCH / bytes.max(1)).max(1));
        grid = sections.groups * teams;
    } else if scratch > 0 || stays {
        grid = grid.min(wanted).min((SCRATCH / (schedule.rows * bytes).max(1)).max(1));
        teams = grid * schedule.rows;
    }

    let head = kernel_head(&mut printer, &schedule, &parts, sections.as_ref())?;
    let mut text = opening(&printer, &schedule);
    text += &arguments(&printer);
    // Blocks that own a part of scratch memory are to be resident at the same time.
    let resident = (wanted / chip.processors).min(LEAN / schedule.threads);
    text += &match resident * schedule.threads {
        // Where there is room for all, the compiler knows best.
        SPACIOUS.. if stays => format!("\nMEMLET_RESIDENT(memlet_kernel, THREADS, {resident})(const Arguments a)\n{{\n"),
        _ => "\nMEMLET_KERNEL(memlet_kernel, THREADS)(const Arguments a)\n{\n".to_string(),
    };
    text += &head;
    text += &begin;
    if sections.is_some() {
        text += "    const index_t chunk = (run - 1) / (teams * ROWS) + 1, by = 1;\n";
        text += "    const index_t from = min_of(run, (section * ROWS + row) * chunk), to = min_of(run, from + chunk);\n";
    } else if private {
        // Neighbouring points, so that registers hold results for long.
        text += "    const index_t chunk = (points - 1) / teams + 1, by = 1;\n";
        text += "    const index_t from = min_of(points, team * chunk), to = min_of(points, from + chunk);\n";
    } else {
        text += "    const index_t from = team, to = points, by = teams;\n";
    }
    let around = sections.as_ref().map_or(0, |s| s.around);
    let point: String = nest.outer[around..]
        .iter()
        .rev()
        .filter(|l| sections.is_none() || nest.steps(l) > 1)
        .map(|each| decoded(&mut printer, nest, each, schedule.wide, 2))
        .collect();
    let strips = nest.groups.first().and_then(|g| g.loops.last()).map_or(1, |last| schedule.slots(nest, last));
    text += &printer.dialect.next.opening(strips, &point);
    if schedule.turns {
        text += "    for (index_t first = from - row; first < to; first += by) {\n        const bool active = first + row < to;\n";
        text += "        const index_t point = active ? first + row : to - 1;\n        index_t rest = point;\n";
    } else {
        let ahead = stays && nest.block().is_some();
        match (ahead, private) {
            // The next point is read before this one is written: where it is known before how many there are, no question lies between.
            (true, false) => {
                text += "    const index_t trips = from < to ? (to - 1 - from) / by + 1 : 0;\n    #pragma unroll 2\n";
                text += "    for (index_t trip = 0; trip < trips; ++trip) {\n        const index_t point = from + trip * by;\n";
            }
            (ahead, _) => {
                text += if ahead { "    #pragma unroll 2\n" } else { "" };
                text += "    for (index_t point = from; point < to; point += by) {\n";
            }
        }
        text += "        index_t rest = point;\n";
    }
    text += &point;
    text += &body;
    text += "    }\n";
    text += &end;
    text += "}\n";
    if finish.is_some() {
        text += &finishing(&printer, &finish_body);
    }
    printer.integers.insert("points".into(), points);
    printer.integers.insert("teams".into(), teams);
    printer.integers.insert("stride".into(), scratch);
    Ok(CudaSource {
        text,
        integers: printer.integers.values().copied().collect(),
        masks: printer.masks.clone(),
        grid,
        threads: schedule.threads,
        teams,
        scratch,
        double,
        shared: 0,
        members: vec![],
        finish: finish.map(|blocks| (blocks, FINISH_THREADS)),
    })
}

/// What a text begins with: where the kernel comes from, types, sizes, functions.
fn opening(printer: &CudaPrinter, schedule: &ThreadSchedule) -> String {
    let mut text = header(printer.spec, printer.nest);
    let double = if printer.double { "#define REAL_IS_DOUBLE\ntypedef double real;\n" } else { "typedef float real;\n" };
    text += &format!("#undef REAL_IS_DOUBLE\n{double}");
    // Where all results have 16 bits or fewer, the approximate `ex2` of the hardware is exact enough.
    let arguments = printer.spec.arguments();
    let mut results = arguments.iter().filter(|a| a.access == ArgumentAccess::Write);
    text += if results.all(|a| matches!(a.dtype, Dtype::Bf16 | Dtype::F16 | Dtype::Bit)) { "#define ROUGH\n" } else { "#undef ROUGH\n" };
    text += if schedule.wide { "typedef long long index_t;\n" } else { "typedef int index_t;\n" };
    text += &format!("enum {{ THREADS = {}, ROWS = {}, ", schedule.threads, schedule.rows);
    let slots = printer.dialect.meetings.max(1) as i64 * (schedule.threads / WARP).max(1);
    text += &format!("TEAM = {}, W = {}, LANES = {}, SLOTS = {slots} }};\n", schedule.team(), schedule.width, printer.nest.lanes);
    text + functions::cuda_prelude()
}

/// The type of what kernels are given.
fn arguments(printer: &CudaPrinter) -> String {
    let count = |n: usize| n.max(1);
    let mut text = String::from("\nstruct Arguments {\n");
    text += &format!("    char *p[{}];\n    char *scratch;\n    char *draw;\n", count(printer.spec.arguments().len()));
    text += &format!("    int64_t n[{}];\n    Mask mask[{}];\n}};\n", count(printer.integers.len()), count(printer.masks.len()));
    text
}

/// The kernel that combines partial results, given its body.
fn finishing(printer: &CudaPrinter, body: &str) -> String {
    let mut text = format!("\nMEMLET_KERNEL(memlet_finish, {FINISH_THREADS})(const Arguments a)\n{{\n");
    text += &integers(printer);
    text += "    POINTER(const real) scratch = GLOBAL(const real, a.scratch);\n";
    text + body + "}\n"
}

/// Blocks of a kernel with scratch memory, or of one whose blocks stay for several points, by the knob `blocks`.
fn blocks(spec: &KernelSpec, config: &KernelConfig, chip: Chip) -> Result<i64, KernelError> {
    match config.knobs.get("blocks") {
        None => Ok(chip.blocks()),
        Some(text) => text.parse().ok().filter(|n| *n > 0).ok_or_else(|| KernelError::Knob {
            kernel: spec.name.clone(),
            key: "blocks".into(),
            value: text.into(),
            allowed: "numbers above 0".into(),
        }),
    }
}

/// C text that takes one index of a point out of `rest`, where the ones after it have been taken.
fn decoded(printer: &mut CudaPrinter, nest: &LoopNest, each: &crate::loopnest::ForLoop, wide: bool, depth: usize) -> String {
    let (at, steps) = outer_names(printer, nest, each);
    let margin = "    ".repeat(depth);
    if wide {
        return format!("{margin}const index_t {at} = rest % {steps};\n{margin}rest /= {steps};\n");
    }
    let [magic, shift] = divisor_names(printer, nest, each);
    let after = format!("after_{at}");
    format!("{margin}const index_t {after} = quotient(rest, {magic}, {shift}), {at} = rest - {after} * {steps};\n{margin}rest = {after};\n")
}

/// What a loop's number of steps is as a divisor, see `quotient` of the prelude.
fn divisor_names(printer: &mut CudaPrinter, nest: &LoopNest, each: &crate::loopnest::ForLoop) -> [String; 2] {
    let (at, _) = outer_names(printer, nest, each);
    let steps = if each.tag == Tag::Block { nest.steps(each) } else { each.count };
    let (magic, shift) = divisor(steps);
    [printer.given(format!("magic_{at}"), magic), printer.given(format!("shift_{at}"), shift)]
}

/// `magic` and `shift` with which ⌊a · magic / 2^shift⌋ = ⌊a / n⌋ for all 0 ≤ a < 2³¹ (Granlund and Montgomery, PLDI 1994, theorem 4.2).
fn divisor(n: i64) -> (i64, i64) {
    let n = n.max(1);
    let shift = 31 + i64::from(64 - (n - 1).leading_zeros());
    (((1i128 << shift) / i128::from(n) + 1) as i64, shift)
}

fn outer_names(printer: &mut CudaPrinter, nest: &LoopNest, each: &crate::loopnest::ForLoop) -> (String, String) {
    if each.tag == Tag::Block {
        ("block".into(), printer.given("blocks".into(), nest.steps(each)))
    } else {
        (printer.index(&each.index), printer.count(&each.index, each.count))
    }
}

fn integers(printer: &CudaPrinter) -> String {
    let each = printer.integers.keys().enumerate();
    each.map(|(n, name)| format!("    const {} {name} = a.n[{n}];\n", if name == "stride" { "int64_t" } else { "index_t" })).collect()
}

/// What a kernel begins with: who the thread is, integers, pointers, masks, shared memory.
fn kernel_head(
    printer: &mut CudaPrinter,
    schedule: &ThreadSchedule,
    parts: &[(String, String)],
    sections: Option<&Sections>,
) -> Result<String, KernelError> {
    let nest = printer.nest;
    // All integers are known by now but those of the decoding of a point.
    for each in &nest.outer {
        outer_names(printer, nest, each);
        if !schedule.wide {
            divisor_names(printer, nest, each);
        }
    }
    for name in ["points", "teams", "stride"] {
        printer.given(name.into(), 0);
    }
    let mut text = String::from("    const int member = threadIdx.x % TEAM, row = threadIdx.x / TEAM;\n");
    text += &integers(printer);
    let part = if let Some(sections) = sections {
        text += "    index_t rest = blockIdx.x / teams;\n    const index_t section = blockIdx.x % teams;\n";
        for each in nest.outer[..sections.around].iter().rev() {
            text += &decoded(printer, nest, each, schedule.wide, 1);
        }
        // Those of one step may be in the place of an element, too.
        for each in nest.outer[sections.around..].iter().filter(|l| nest.steps(l) == 1) {
            text += &format!("    const index_t {} = 0;\n", outer_names(printer, nest, each).0);
        }
        "section"
    } else {
        text += "    const index_t team = (index_t)blockIdx.x * ROWS + row;\n";
        "team"
    };
    text += &pointers(printer)?;
    for (data, name) in parts {
        // Beside the registers of partial results.
        let suffix = if matches!(printer.tensor(data)?.space, MemorySpace::Private { .. }) { "_part" } else { "" };
        text += &format!("    POINTER(real) {name}{suffix} = GLOBAL(real, a.scratch) + ((int64_t){part} * stride + at_{name});\n");
        if !suffix.is_empty() && schedule.places.get(data) == Some(&Placement::Scratch) {
            text += &format!("    POINTER(real) {name} = {name}_part;\n");
        }
    }
    text += &masks(printer);
    if schedule.turns {
        text += &format!("    SHARED(real, tile, {});\n", schedule.turned());
        text += "    SHARED(index_t, heads, ROWS);\n    SHARED(int32_t, lives, ROWS);\n";
    }
    for held in &printer.dialect.in_turn {
        text += &format!("    uint32_t {held}[W][4];\n    uint64_t {held}_at = ~(uint64_t)0;\n");
    }
    for n in 1..=printer.dialect.draws {
        text += &format!("    SHARED(uint16_t, drawn{n}, THREADS * W);\n");
    }
    if sections.is_some() && schedule.rows > 1 {
        text += "    SHARED(real, gathered, THREADS * W);\n";
    }
    if printer.dialect.meetings > 0 {
        text += "    SHARED(real, slots, 2 * SLOTS);\n    int turn = 0;\n";
    }
    for (data, place) in schedule.places.iter().filter(|(d, p)| **p == Placement::Shared && printer.pointers.contains(*d)) {
        debug_assert_eq!(*place, Placement::Shared);
        let (name, elements) = (printer.identifier(data), printer.tensor(data)?.shape.iter().product::<i64>());
        text += &format!("    SHARED(real, {name}_all, {});\n", elements * schedule.rows);
        text += &format!("    POINTER(real) {name} = {name}_all + row * {elements};\n");
    }
    Ok(text)
}

/// What a kernel knows of its masks.
fn masks(printer: &CudaPrinter) -> String {
    let mut text = String::new();
    for n in 0..printer.masks.len() {
        text += &format!("    const Keep keep{n} = keep_of(a.mask[{n}], GLOBAL(const uint64_t, a.draw));\n");
        text += &format!("    const uint32_t threshold{n} = keep{n}.threshold, upper{n} = threshold{n} << 16;\n");
        // Where everything is dropped, `upper` is zero, and nothing would be.
        text += &format!("    const real factor{n} = threshold{n} >> 16 ? (real)0 : (real)keep{n}.factor;\n");
    }
    text
}

/// Pointers to the containers in memory that a kernel touches.
fn pointers(printer: &CudaPrinter) -> Result<String, KernelError> {
    let (nest, mut text) = (printer.nest, String::new());
    let arguments = printer.spec.arguments();
    let heap: Vec<(&String, usize, &String)> = nest
        .tensors
        .iter()
        .filter_map(|(data, tensor)| match &tensor.space {
            MemorySpace::Heap { argument, root } if printer.pointers.contains(data) => Some((data, *argument, root)),
            _ => None,
        })
        .collect();
    for (data, argument, root) in &heap {
        let kind = arguments
            .get(*argument)
            .and_then(|a| cuda_type(a.dtype))
            .ok_or_else(|| printer.unsupported(format!("`{data}` holds bits, which kernels cannot address")))?;
        let constant = if arguments.get(*argument).is_some_and(|a| a.access == ArgumentAccess::Read) { "const " } else { "" };
        let restrict = if heap.iter().filter(|(_, _, r)| r == root).count() == 1 { " RESTRICT" } else { "" };
        let name = printer.identifier(data);
        text += &format!("    POINTER({constant}{kind}){restrict} {name} = GLOBAL({constant}{kind}, a.p[{argument}]);\n");
    }
    Ok(text)
}
