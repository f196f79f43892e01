//! A nest over tiles as CUDA C: a block works on one point of the shared outer loops at a time, all of its threads on one group after
//! another. Containers that are local to a tile are in the block's shared memory as far as they fit, the rest in global memory.

mod async_copy;
mod gemm;
mod group;
mod smem_ring;
mod streaming;

use crate::emit::scalar::{NamePrinter, constant};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::streaming::{FORM, STREAMING, is_streaming};
use crate::loopnest::{MemorySpace, Tag, Tile};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::schedule::{Placement, ThreadSchedule, WARP};
use crate::target::cuda::emit::split_reduction::{FINISH_THREADS, partials};
use crate::target::cuda::emit::{
    Chip, CudaSource, GRID, Member, SCRATCH, arguments, blocks, finishing, integers, masks, opening, pointers,
};
pub(super) use group::{TileWalk, walk_of};
use indexmap::IndexMap;
use std::ops::RangeInclusive;
use streaming::StreamedBlock;

/// Alignment of pieces of shared memory, in bytes.
const LINE: i64 = 16;
/// Parts of the shared-memory ring: all but one are being copied while that one is multiplied.
const STAGES: RangeInclusive<i64> = 2..=4;

/// Where the local containers of a tile are held.
#[derive(Default)]
struct Rooms {
    places: IndexMap<String, Placement>,
    /// Names in global memory, and where each begins.
    parts: Vec<(String, i64)>,
    /// Names in shared memory, where each begins, and how many elements it has.
    shared: Vec<(String, i64, i64)>,
    /// Who has the memory of whom.
    aliases: Vec<(String, String)>,
    /// Elements of global memory.
    scratch: i64,
    /// Bytes of shared memory.
    end: i64,
}

impl Rooms {
    /// Places containers in shared memory from `at` on as long as they fit, the smallest first: they are read most often for their size.
    fn of(printer: &CudaPrinter, mut at: i64, chip: Chip) -> Result<Self, KernelError> {
        let (nest, real) = (printer.nest, if printer.double { 8 } else { 4 });
        let mut found = Rooms::default();
        let mut locals: Vec<_> = nest.tensors.iter().filter(|(_, t)| !matches!(t.space, MemorySpace::Heap { .. })).collect();
        // A container whose memory others reuse gets as much as the largest of them.
        let mut rooms: IndexMap<&String, i64> = IndexMap::new();
        for (data, _) in &locals {
            let room = rooms.entry(nest.reuses.get(*data).unwrap_or(data)).or_insert(0);
            *room = (*room).max((printer.extent(data)? + 3) / 4 * 4);
        }
        // A container that a larger ring displaces is one of the largest.
        locals.sort_by_key(|(data, _)| rooms.get(nest.reuses.get(*data).unwrap_or(data)).copied());
        for (data, tensor) in locals {
            let (name, elements) = (printer.identifier(data), rooms.get(data).copied().unwrap_or(0));
            if let Some(owner) = nest.reuses.get(data) {
                found.aliases.push((data.clone(), owner.clone()));
                continue;
            }
            let partial = matches!(tensor.space, MemorySpace::Private { .. });
            let place =
                if partial || (tensor.stored && at + elements * real > chip.shared) { Placement::Scratch } else { Placement::Shared };
            found.places.insert(data.clone(), place);
            if place == Placement::Scratch {
                found.parts.push((name, found.scratch));
                found.scratch += elements;
            } else if tensor.stored {
                found.shared.push((name, at, elements));
                at += (elements * real + LINE - 1) / LINE * LINE;
            }
        }
        for (data, owner) in &found.aliases {
            if let Some(place) = found.places.get(owner).copied() {
                found.places.insert(data.clone(), place);
            }
        }
        Ok(Rooms { end: at, ..found })
    }
}

/// A kernel without what its text begins with.
pub struct KernelPart {
    /// The type of what it is given.
    arguments: String,
    /// What a block does, `block` being its number.
    body: String,
    /// The kernel that combines partial results.
    finish: String,
    /// What its text begins with.
    opening: String,
    /// Parts of the shared-memory ring.
    pub stages: i64,
    /// Where local containers are.
    pub places: IndexMap<String, Placement>,
    pub source: CudaSource,
}

/// Prints a nest with products; `private` says whether it has partial results.
pub fn emit(printer: CudaPrinter, private: bool, chip: Chip) -> Result<CudaSource, KernelError> {
    let (spec, config) = (printer.spec, printer.config);
    let KernelPart { arguments, body, finish, opening, source, .. } = part(printer, private, chip)?;
    let head = match config.knobs.get("resident") {
        None => "MEMLET_KERNEL(memlet_kernel, THREADS)".to_string(),
        Some(text) => format!("MEMLET_RESIDENT(memlet_kernel, THREADS, {})", resident(spec, text)?),
    };
    let kernel = format!("\n{head}(const Arguments a)\n{{\n    const index_t block = blockIdx.x;\n{body}}}\n");
    Ok(CudaSource { text: opening + &arguments + &kernel + &finish, ..source })
}

/// Blocks that are to fit a processor at a time, by the knob `resident`.
fn resident(spec: &KernelSpec, text: &str) -> Result<i64, KernelError> {
    text.parse().ok().filter(|n| (1..=16).contains(n)).ok_or_else(|| KernelError::Knob {
        kernel: spec.name.clone(),
        key: "resident".into(),
        value: text.into(),
        allowed: "1 to 16".into(),
    })
}

/// Several kernels as one launch: the first blocks are those of the first kernel, and so on. Each comes with the numbers of its
/// arguments among those of all. `None` of them has partial results or scratch memory.
pub fn emit_group(parts: Vec<(KernelPart, Vec<usize>)>) -> Option<CudaSource> {
    // Where one takes indices of 64 bits, all do.
    let opening = parts.iter().map(|(p, _)| &p.opening).max_by_key(|o| o.contains("typedef long long index_t"))?.clone();
    let (mut text, mut kernel, mut given) = (opening, String::new(), String::new());
    let (mut members, mut grid, mut shared) = (Vec::new(), 0, 0);
    let first = parts.first()?.0.source.clone();
    for (n, (part, arguments)) in parts.into_iter().enumerate() {
        let KernelPart { arguments: kind, body, source, .. } = part;
        let alike = source.threads == first.threads && source.double == first.double;
        (alike && source.scratch == 0 && source.finish.is_none()).then_some(())?;
        text += &format!("\nnamespace member{n} {{\n{kind}\nDEVICE void run(const Arguments &a, const index_t block)\n{{\n{body}}}\n}}\n");
        given += &format!("    member{n}::Arguments of{n};\n");
        let blocks = source.grid;
        kernel +=
            &format!("    if (block < {}) {{\n        member{n}::run(a.of{n}, block - {grid});\n        return;\n    }}\n", grid + blocks);
        grid += blocks;
        shared = shared.max(source.shared);
        members.push(Member { arguments, source });
    }
    text += &format!("\nstruct Arguments {{\n{given}}};\n\nMEMLET_KERNEL(memlet_kernel, THREADS)(const Arguments a)\n{{\n");
    text += &format!("    const index_t block = blockIdx.x;\n{kernel}}}\n");
    Some(CudaSource { text, integers: vec![], masks: vec![], grid, teams: grid, shared, members, ..first })
}

/// Everything of a kernel with products but the text that all have.
pub fn part(mut printer: CudaPrinter, private: bool, chip: Chip) -> Result<KernelPart, KernelError> {
    let (spec, nest, config, double) = (printer.spec, printer.nest, printer.config, printer.double);
    let Some(mut schedule) = printer.dialect.schedule.clone() else { return Err(printer.unsupported("it has no schedule".into())) };
    let real = if double { 8 } else { 4 };
    if schedule.team() != WARP {
        return Err(KernelError::Knob {
            kernel: spec.name.clone(),
            key: "rows".into(),
            value: schedule.rows.to_string(),
            allowed: "nothing: products are a block's, and rows a warp's".into(),
        });
    }
    let depth = nest.gemm.map_or(0, |p| p.depth);
    if depth % 16 != 0 || depth > 128 {
        return Err(KernelError::Knob {
            kernel: spec.name.clone(),
            key: "depth".into(),
            value: depth.to_string(),
            allowed: "16, 32, 64, 128".into(),
        });
    }
    let number = |key: &str, default: i64| config.knobs.get(key).map_or(Some(default), |text| text.parse().ok());
    let Some(most) = number("stages", *STAGES.start()).filter(|n| STAGES.contains(n)) else {
        return Err(KernelError::Knob {
            kernel: spec.name.clone(),
            key: "stages".into(),
            value: config.knobs.get("stages").unwrap_or_default().into(),
            allowed: format!("{} to {}", STAGES.start(), STAGES.end()),
        });
    };
    if let Some(form) = config.knobs.get(FORM) {
        if !is_streaming(form) {
            return Err(KernelError::Knob {
                kernel: spec.name.clone(),
                key: FORM.into(),
                value: form.into(),
                allowed: format!("{STREAMING}, or nothing"),
            });
        }
        return streamed(printer, schedule, most, chip);
    }
    schedule.places = IndexMap::new();
    printer.dialect.schedule = Some(schedule.clone());
    // A factor without a place in shared memory passes through the ring, which then leaves less of it.
    let (stages, rooms, stage) = loop {
        let (least, stage) = printer.stage(&schedule, *STAGES.start())?;
        if least > chip.shared {
            return Err(KernelError::Knob {
                kernel: spec.name.clone(),
                key: "depth".into(),
                value: depth.to_string(),
                allowed: format!("less, where a block has {} bytes of shared memory and these factors take {least}", chip.shared),
            });
        }
        let mut found = (*STAGES.start(), Rooms::of(&printer, least, chip)?, stage);
        // As many parts as are wanted and displace no local container.
        for parts in (STAGES.start() + 1..=most).rev() {
            let (at, stage) = printer.stage(&schedule, parts)?;
            let rooms = Rooms::of(&printer, at, chip)?;
            if at <= chip.shared && rooms.places == found.1.places {
                found = (parts, rooms, stage);
                break;
            }
        }
        let settled = found.1.places == schedule.places;
        schedule.places = found.1.places.clone();
        printer.dialect.schedule = Some(schedule.clone());
        if settled {
            break found;
        }
    };
    let Rooms { parts, shared, aliases, scratch, end, .. } = rooms;

    for (data, combine, elements) in partials(nest) {
        let (name, identity) = (printer.identifier(data), constant(combine.identity().first().copied().unwrap_or(0.0), double));
        printer.line(1, format!("for (index_t e = threadIdx.x; e < {elements}; e += THREADS) {name}[e] = {identity};"));
    }
    if private {
        printer.line(1, "__syncthreads();");
    }
    let begin = std::mem::take(&mut printer.text);
    open_tiles(&mut printer);
    for group in &nest.groups {
        let whole = printer.whole(group);
        if let Some(whole) = &whole {
            printer.line(2, format!("if ({whole}) {{"));
        }
        match group.is_gemm {
            true => printer.tile_gemm(group, 2)?,
            false => printer.tile_group(group, 2)?,
        }
        if whole.is_some() {
            printer.line(2, "}");
        }
    }
    let body = std::mem::take(&mut printer.text);
    let finish = if private { Some(printer.finish_partials()?) } else { None };
    let finish_body = std::mem::take(&mut printer.text);

    // After the kernel that combines them, which only asks for the name.
    for (name, at) in &parts {
        printer.given(format!("at_{name}"), *at);
    }
    let mut grid = nest.points().min(GRID);
    if scratch > 0 {
        grid = grid.min(blocks(spec, config, chip)?).min((SCRATCH / (scratch * real)).max(1));
    }
    // Known by now, but for what decodes a point.
    let loops = decoding(&mut printer, grid, scratch);
    let opening = opening(&printer, &schedule) + &format!("enum {{ DEPTH = {depth}, STAGES = {stages} }};\n{}", include_str!("prelude.cu"));
    let mut text = String::from("    const int member = threadIdx.x % TEAM, row = threadIdx.x / TEAM;\n");
    text += &integers(&printer);
    text += &pointers(&printer)?;
    for (name, _) in parts {
        text += &format!("    POINTER(real) {name} = GLOBAL(real, a.scratch) + ((int64_t)block * stride + at_{name});\n");
    }
    text += &stage;
    for (name, at, elements) in shared {
        text += &format!("    PLACED(real, {name}, {at}, {elements});\n");
    }
    for (data, owner) in aliases {
        text += &format!("    POINTER(real) {} = {};\n", printer.identifier(&data), printer.identifier(&owner));
    }
    text += &masks(&printer);
    text += &begin;
    text += &walked(&loops, &body);
    let finishes = finish.map(|blocks| (blocks, FINISH_THREADS));
    let source = CudaSource { scratch, finish: finishes, ..launched(&printer, &schedule, grid, end) };
    let finish = if source.finish.is_some() { finishing(&printer, &finish_body) } else { String::new() };
    Ok(KernelPart { arguments: arguments(&printer), body: text, finish, opening, stages, places: schedule.places, source })
}

/// How many iterations of every ragged tile there are.
fn open_tiles(printer: &mut CudaPrinter) {
    for tile in printer.nest.tiles.iter().filter(|t| t.is_ragged()) {
        let whole = printer.given(format!("whole_{}", printer.index(&tile.index)), tile.count);
        let size = printer.symbol(&Tile::symbol(&tile.index));
        let (count, at) = (printer.count(&tile.index, tile.count), printer.index(&tile.outer));
        printer.line(2, format!("const index_t {count} = min_of({size}, {whole} - {at} * {size});"));
    }
}

/// The integers that decode a point: tag, index and steps of every outer loop.
fn decoding(printer: &mut CudaPrinter, grid: i64, scratch: i64) -> Vec<(Tag, String, String)> {
    let nest = printer.nest;
    let loops = nest.outer.iter().map(|l| (l.tag, printer.index(&l.index), printer.count(&l.index, l.count))).collect();
    for (name, value) in [("points", nest.points()), ("teams", grid), ("stride", scratch)] {
        printer.given(name.into(), value);
    }
    loops
}

/// How a kernel without scratch memory or partial results is launched; its text comes later.
fn launched(printer: &CudaPrinter, schedule: &ThreadSchedule, grid: i64, shared: i64) -> CudaSource {
    CudaSource {
        text: String::new(),
        integers: printer.integers.values().copied().collect(),
        masks: printer.masks.clone(),
        grid,
        threads: schedule.threads,
        teams: grid,
        scratch: 0,
        double: printer.double,
        shared,
        finish: None,
        members: vec![],
    }
}

/// The loop over a block's points, around the text of one point.
fn walked(loops: &[(Tag, String, String)], body: &str) -> String {
    let mut text = "    for (index_t point = block; point < points; point += teams) {\n        index_t rest = point;\n".to_string();
    for (_, at, steps) in loops.iter().filter(|(tag, ..)| *tag != Tag::Sequential).rev() {
        text += &format!("        const index_t {at} = rest % {steps};\n        rest /= {steps};\n");
    }
    let sequential = || loops.iter().filter(|(tag, ..)| *tag == Tag::Sequential);
    for (_, at, steps) in sequential() {
        text += &format!("        for (index_t {at} = 0; {at} < {steps}; ++{at}) {{\n");
    }
    text += body;
    text += &sequential().map(|_| "        }\n").collect::<String>();
    text + "    }\n"
}

/// A kernel of streamed tiles: nothing that is local to a tile is in memory.
fn streamed(mut printer: CudaPrinter, schedule: ThreadSchedule, most: i64, chip: Chip) -> Result<KernelPart, KernelError> {
    let depth = printer.nest.gemm.map_or(0, |p| p.depth);
    open_tiles(&mut printer);
    let StreamedBlock { body, stage, bytes, stages } = printer.streamed_tile(most, chip.shared, 2)?;
    let grid = printer.nest.points().min(GRID);
    let loops = decoding(&mut printer, grid, 0);
    let sizes = format!("enum {{ DEPTH = {depth}, STAGES = {stages} }};\n");
    let opening = opening(&printer, &schedule) + &sizes + include_str!("prelude.cu") + include_str!("streaming.cu");
    let text = integers(&printer) + &pointers(&printer)? + &stage + &masks(&printer) + &walked(&loops, &body);
    let source = launched(&printer, &schedule, grid, bytes);
    let (finish, places) = (String::new(), IndexMap::new());
    Ok(KernelPart { arguments: arguments(&printer), body: text, finish, opening, stages, places, source })
}
