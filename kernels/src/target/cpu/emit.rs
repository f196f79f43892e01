//! A loop nest as one C file: prelude, one point of the outer range, the range, and the combination of partial results.

use crate::emit::functions;
use crate::emit::long_sum::{has_total, total_of};
use crate::emit::printer::{PrintedLoops, c_type};
use crate::emit::scalar::NamePrinter;
use crate::emit::scalar::combined;
use crate::error::KernelError;
use crate::in_place;
use crate::kernel::{ArgumentAccess, KernelSpec};
use crate::loopnest::{LoopNest, MemorySpace, Tag, Tile};
use crate::processor::PanelBlock;
use crate::runtime::dropout::Mask;
use crate::target::cpu::dialect::C;
pub(crate) use crate::target::cpu::dialect::CPrinter;
use crate::target::cpu::direct::PRELUDE;
use sdfg::config::KernelConfig;
use sdfg::{Combine, Dtype};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Alignment of scratch buffers: a cache line, the widest vector.
const LINE: usize = 64;

/// Partial results of the workers, and how they are combined.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// First byte within a worker's scratch memory.
    pub at: usize,
    /// The same of the totals of long sums, if there are any.
    pub total: Option<usize>,
    pub elements: usize,
    pub combine: Combine,
    /// The argument that holds the whole result.
    pub argument: Option<usize>,
    /// Iterations of the outermost loop of the combination.
    pub steps: i64,
}

/// A C file and the numbers that it takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CSource {
    pub text: String,
    /// Identifiers of the text that are made of the kernel's names: of containers, indices and sizes.
    pub names: BTreeSet<String>,
    pub integers: Vec<i64>,
    pub masks: Vec<Mask>,
    /// Points of the outer range.
    pub points: i64,
    /// Scratch memory of one worker.
    pub scratch: usize,
    /// The same if no local took over the place of another one.
    pub requested: usize,
    pub partials: Vec<Partial>,
    /// C of the library of products that it calls.
    pub library: Option<Arc<str>>,
    /// Bytes of operands that are packed before the first point, shared by all workers.
    pub prepared: usize,
    /// The arguments that are packed.
    pub packed: Vec<usize>,
    /// Steps of the packing, which the workers share.
    pub preparations: i64,
    pub double: bool,
}

/// Prints a loop nest.
///
/// # Errors
/// Element types and accesses that kernels do not have.
pub fn emit(spec: &KernelSpec, nest: &LoopNest, config: &KernelConfig) -> Result<CSource, KernelError> {
    let double = nest.tensors.values().any(|t| t.dtype == Dtype::F64);
    let mut printer = CPrinter::new(spec, nest, config, double, C::default());
    print_groups(&mut printer)?;
    let body = std::mem::take(&mut printer.text);
    finish(&mut printer)?;
    let finish = std::mem::take(&mut printer.text);

    let mut outer = Vec::new();
    for each in &nest.outer {
        let steps = nest.steps(each);
        let count = printer.count(&each.index, each.count);
        let steps_name = if each.tag == Tag::Block { printer.given("blocks".into(), steps) } else { count };
        let at = if each.tag == Tag::Block { "block".to_string() } else { printer.index(&each.index) };
        outer.push((each, at, steps_name));
    }
    let (mut at, mut places) = (0usize, Vec::new());
    for (name, (kind, bytes)) in printer.scratch.clone() {
        printer.given(format!("at_{name}"), at as i64);
        places.push((name, kind, at));
        at += bytes.div_ceil(LINE) * LINE;
    }

    // Everything that a point needs: (declaration, how the range makes it).
    let mut parameters: Vec<(String, String, String)> = Vec::new();
    for (n, name) in printer.integers.keys().enumerate() {
        parameters.push((format!("const int64_t {name}"), name.clone(), format!("n[{n}]")));
    }
    let arguments = spec.arguments();
    let in_place = in_place::asked(spec, nest, config)?;
    let heap: Vec<(String, usize, String)> = nest
        .tensors
        .iter()
        .filter_map(|(data, tensor)| match &tensor.space {
            MemorySpace::Heap { argument, root } if printer.pointers.contains(data) => Some((data.clone(), *argument, root.clone())),
            _ => None,
        })
        .collect();
    for (data, argument, root) in &heap {
        let kind = arguments.get(*argument).and_then(|a| c_type(a.dtype)).ok_or_else(|| KernelError::Unsupported {
            kernel: spec.name.clone(),
            what: format!("`{data}` holds bits, which kernels cannot address"),
        })?;
        let constant = if arguments.get(*argument).is_some_and(|a| a.access == ArgumentAccess::Read) { "const " } else { "" };
        let shared = in_place.iter().any(|p| p.read == *root || p.written == *root);
        let alone = !shared && heap.iter().filter(|(_, _, r)| r == root).count() == 1;
        let restrict = if alone { "restrict " } else { "" };
        let name = &printer.identifiers[data.as_str()];
        let declaration = format!("{constant}{kind} *{restrict}const {name}");
        parameters.push((declaration, name.clone(), format!("({constant}{kind} *)p[{argument}]")));
    }
    for (name, kind, _) in &places {
        parameters.push((format!("{kind} *restrict const {name}"), name.clone(), format!("({kind} *)(scratch + at_{name})")));
    }
    if !printer.prepared.is_empty() {
        parameters.push(("const real *const prepared".into(), "prepared".into(), format!("(const real *)p[{}]", arguments.len())));
    }
    for n in 0..printer.masks.len() {
        parameters.push((format!("const uint32_t threshold{n}"), format!("threshold{n}"), format!("host->keep[{n}].threshold")));
        parameters.push((format!("const real factor{n}"), format!("factor{n}"), format!("(real)host->keep[{n}].factor")));
    }
    let mut points: Vec<(String, String)> = vec![("const Host *const host".into(), "host".into())];
    if printer.held > 0 {
        points.push(("int64_t *const held".into(), "held".into()));
    }
    for (each, at, _) in &outer {
        if each.tag == Tag::Block {
            points.push(("const int64_t first_lane".into(), "first_lane".into()));
            points.push(("const int64_t lanes".into(), "lanes".into()));
        } else {
            points.push((format!("const int64_t {at}"), at.clone()));
        }
    }

    let mut text = header(spec, nest);
    text += &format!("#define LANES {}\n", nest.lanes);
    text += if double { "#define REAL_IS_DOUBLE\ntypedef double real;\n" } else { "typedef float real;\n" };
    text += functions::c_prelude();
    let library = nest.gemm.as_ref().filter(|_| nest.groups.iter().any(|g| g.is_gemm && !nest.is_direct(g)));
    if let Some(products) = library {
        text += &products.calls(double);
    }
    if !printer.functions.is_empty() || !printer.dialect.padded.is_empty() {
        text += &format!("\n#ifndef VEC_BYTES\n#define VEC_BYTES {}\n#endif\n{PRELUDE}", PanelBlock::native().vector);
        printer.functions.values().for_each(|function| text += function);
    }
    let declarations: Vec<&str> = points.iter().map(|(d, _)| d).chain(parameters.iter().map(|(d, _, _)| d)).map(String::as_str).collect();
    text += &format!("\n/* One point of the outer maps. */\nALWAYS void point(\n    {})\n{{\n{body}}}\n", declarations.join(",\n    "));
    text += "\n/* Points `from` to `to` of the flattened outer maps. */\n";
    text += "void memlet_kernel(char *const *p, const int64_t *n, const Host *host, char *scratch, int64_t from, int64_t to)\n{\n";
    for (declaration, _, made) in &parameters {
        text += &format!("    {declaration} = {made};\n");
    }
    if printer.held > 0 {
        // No block of lanes has this number.
        let none = vec!["-1"; printer.held].join(", ");
        text += &format!("    int64_t held[] = {{{none}}};\n");
    }
    text += "    int64_t rest = from;\n";
    let shared = || outer.iter().filter(|(each, ..)| !matches!(each.tag, Tag::Sequential | Tag::Step));
    for (_, at, steps) in shared().rev() {
        text += &format!("    int64_t {at} = rest % {steps};\n    rest /= {steps};\n");
    }
    text += "    for (int64_t n_ = from; n_ < to; ++n_) {\n";
    let call = |lanes: &str| {
        let names: Vec<&str> = points
            .iter()
            .map(|(_, n)| if n == "lanes" { lanes } else { n.as_str() })
            .chain(parameters.iter().map(|(_, n, _)| n.as_str()))
            .collect();
        format!("point({});\n", names.join(", "))
    };
    if let Some(block) = nest.block() {
        let count = printer.count(&block.index, block.count);
        text += "        const int64_t first_lane = block * LANES;\n";
        text += &format!("        const int64_t lanes = min_of(LANES, {count} - first_lane);\n");
        text += "        if (lanes == LANES) {\n";
        text += &format!("            {}        }} else {{\n            {}        }}\n", call("LANES"), call("lanes"));
    } else {
        for (_, at, steps) in outer.iter().filter(|(each, ..)| each.tag == Tag::Sequential) {
            text += &format!("        for (int64_t {at} = 0; {at} < {steps}; ++{at})\n");
        }
        if let Some((_, at, steps)) = outer.iter().find(|(each, ..)| each.tag == Tag::Step)
            && let Some(strip) = &nest.strip
        {
            let (strips, each) = (printer.index(&strip.strips), strip.each);
            text += &format!("        for (int64_t {at} = {strips} * {each}; {at} < min_of({steps}, ({strips} + 1) * {each}); ++{at})\n");
        }
        text += &format!("        {}", call("lanes"));
    }
    for (_, at, steps) in shared().rev() {
        text += &format!("        if (++{at} < {steps}) continue;\n        {at} = 0;\n");
    }
    text += "    }\n}\n";

    let mut partials = Vec::new();
    for (data, tensor) in &nest.tensors {
        if let MemorySpace::Private { combine } = tensor.space {
            let name = &printer.identifiers[data.as_str()];
            let at = places.iter().find(|(n, _, _)| n == name).map_or(0, |(_, _, at)| *at);
            let elements: i64 = tensor.shape.iter().product();
            let total = total_of(name);
            let total = places.iter().find(|(n, _, _)| *n == total && has_total(nest, data)).map(|(_, _, at)| *at);
            let root = spec.root(data.trim_end_matches(".partial"));
            let argument = arguments.iter().position(|a| a.data == root);
            partials.push(Partial {
                argument,
                at,
                total,
                elements: elements as usize,
                combine,
                steps: tensor.shape.first().copied().unwrap_or(1),
            });
        }
    }
    if !partials.is_empty() {
        let integers = printer.integers.keys().enumerate().map(|(n, name)| format!("    const int64_t {name} = n[{n}];\n"));
        text += "\n/* Combines the workers' partial results: steps `from` to `to` of the first loop of result `which`. */\n";
        text += "void memlet_finish(char *const *p, const int64_t *n, const char *scratch, int64_t stride, int64_t workers, int64_t which, int64_t from, int64_t to)\n{\n";
        text += &integers.collect::<String>();
        text += &finish;
        text += "}\n";
    }
    let (prepared, preparations) = (printer.prepared_bytes(), printer.preparations());
    let argument = |data: &String| match nest.tensors.get(data).map(|t| &t.space) {
        Some(MemorySpace::Heap { argument, .. }) => Some(*argument),
        _ => None,
    };
    let packed = printer.prepared.iter().filter_map(|p| argument(&p.data)).collect();
    if preparations > 0 {
        let declared = |(declaration, name, made): &(String, String, String)| {
            let wanted = name != "prepared" && !made.contains("host->") && !made.contains("scratch");
            wanted.then(|| format!("    {declaration} = {made};\n"))
        };
        text += "\n/* Packs operands for all points: steps `from` to `to`. */\n";
        text += "void memlet_prepare(char *const *p, const int64_t *n, const Host *host, int64_t from, int64_t to)\n{\n";
        text += &parameters.iter().filter_map(declared).collect::<String>();
        text += &format!("    real *const prepared = (real *)p[{}];\n", arguments.len());
        text += &printer.preparing();
        text += "}\n";
    }
    Ok(CSource {
        text,
        names: printer.given_names(),
        library: library.map(|products| products.code(double)),
        prepared,
        packed,
        preparations,
        integers: printer.integers.values().copied().collect(),
        masks: printer.masks.clone(),
        points: nest.points(),
        scratch: at,
        requested: at + printer.dialect.taken_over.values().map(|bytes| bytes.next_multiple_of(LINE)).sum::<usize>(),
        partials,
        double,
    })
}

/// The C of one point of the outer range.
fn print_groups(printer: &mut CPrinter) -> Result<(), KernelError> {
    let nest = printer.nest;
    for tile in nest.tiles.iter().filter(|t| t.is_ragged()) {
        let whole = printer.given(format!("whole_{}", printer.index(&tile.index)), tile.count);
        let size = printer.symbol(&Tile::symbol(&tile.index));
        let (count, at) = (printer.count(&tile.index, tile.count), printer.index(&tile.outer));
        printer.line(1, format!("const int64_t {count} = min_of({size}, {whole} - {at} * {size});"));
    }
    printer.keep_rows(1)?;
    let mut groups = nest.groups.iter().peekable();
    while let Some(group) = groups.next() {
        let whole = printer.whole(group);
        if let Some(whole) = &whole {
            printer.line(1, format!("if ({whole}) {{"));
        }
        let mut made: Vec<&str> = group.statements.iter().map(|s| s.write.data.as_str()).collect();
        match group.is_gemm {
            true if nest.is_direct(group) => {
                let epilogue = groups.peek().copied().and_then(|next| printer.epilogue(group, next));
                if epilogue.is_some() {
                    made.extend(groups.next().iter().flat_map(|next| &next.statements).map(|s| s.write.data.as_str()));
                }
                if !printer.winograd(group, epilogue.as_ref(), 1)? {
                    printer.direct(group, epilogue, 1)?;
                }
            }
            true => printer.gemm(group, 1)?,
            false if printer.window_reduction(group, 1)? => {}
            false => printer.group(group, 1)?,
        }
        for border in nest.borders.iter().filter(|b| made.contains(&b.data.as_str())) {
            printer.border(border, 1)?;
        }
        if whole.is_some() {
            printer.line(1, "}");
        }
    }
    Ok(())
}

/// What the loops of each group become, and the locals that are in a worker's scratch memory.
///
/// # Errors
/// As [`emit`].
pub fn printed_loops(
    spec: &KernelSpec,
    nest: &LoopNest,
    config: &KernelConfig,
) -> Result<(Vec<PrintedLoops>, BTreeSet<String>), KernelError> {
    let double = nest.tensors.values().any(|t| t.dtype == Dtype::F64);
    let mut printer = CPrinter::new(spec, nest, config, double, C::default());
    print_groups(&mut printer)?;
    Ok((printer.loops, printer.dialect.held))
}

pub(crate) fn header(spec: &KernelSpec, nest: &LoopNest) -> String {
    let mut text = format!("/* {}\n *\n", spec.name);
    for line in &nest.about {
        text += &format!(" * {}\n", line.replace("*/", "* /"));
    }
    // No layouts: configurations that differ in strides alone share one compiled text.
    text += &format!(" *\n * vector along {}", if nest.vectors.is_empty() { "nothing".into() } else { nest.vectors.join(", ") });
    text += "\n */\n";
    text
}

/// Loops that combine the partial results of each reduction over outer indices.
fn finish(printer: &mut CPrinter) -> Result<(), KernelError> {
    let nest = printer.nest;
    let mut which = 0;
    for (data, tensor) in &nest.tensors {
        let MemorySpace::Private { combine } = tensor.space else { continue };
        let target = data.trim_end_matches(".partial");
        let container = printer
            .spec
            .containers
            .get(target)
            .ok_or_else(|| KernelError::UnknownContainer { kernel: printer.spec.name.clone(), data: target.to_string() })?;
        let root = printer.spec.root(target).to_string();
        let argument = printer.spec.arguments().iter().position(|a| a.data == root).unwrap_or(0);
        let (from, _, _) = printer.strides(data)?;
        let (to, first) = printer.heap_strides(target, &root)?;
        let name = printer.identifiers[data.as_str()].clone();
        printer.line(1, format!("if (which == {which}) {{"));
        let (mut source, mut place) = (Vec::new(), vec![printer.given(format!("first_{name}_out"), first)]);
        for (n, extent) in tensor.shape.iter().enumerate() {
            let extent = printer.given(format!("d_{name}_{n}"), *extent);
            let (start, stop) = if n == 0 { ("from", "to") } else { ("0", extent.as_str()) };
            printer.line(2 + n, format!("for (int64_t i{n} = {start}; i{n} < {stop}; ++i{n}) {{"));
            let (s, t) = (printer.given(format!("s_{name}_{n}"), from[n]), printer.given(format!("out_{name}_{n}"), to[n]));
            source.push(format!("i{n} * {s}"));
            place.push(format!("i{n} * {t}"));
        }
        let depth = 2 + tensor.shape.len();
        let source = if source.is_empty() { "0".to_string() } else { source.join(" + ") };
        printer.line(depth, format!("const char *part = scratch + at_{name};"));
        // Sums of workers are added up, too; those of many terms have a part in their totals.
        let held = if combine == Combine::Sum { "double" } else { "real" };
        let long = Some(format!("long_{name}")).filter(|long| printer.integers.contains_key(long));
        let total = total_of(&name);
        let totals = |printer: &mut CPrinter, into: &str, depth: usize| {
            if let Some(long) = &long {
                printer.line(depth, format!("if ({long}) {into} += ((const double *)(part - at_{name} + at_{total}))[{source}];"));
            }
        };
        printer.line(depth, format!("{held} whole = ((const real *)part)[{source}];"));
        totals(printer, "whole", depth);
        printer.line(depth, "for (int64_t w = 1; w < workers; ++w) {");
        printer.line(depth + 1, "part += stride;");
        printer.line(depth + 1, format!("{held} one = ((const real *)part)[{source}];"));
        totals(printer, "one", depth + 1);
        printer.line(depth + 1, format!("whole = {};", combined(combine, "whole", "one")));
        printer.line(depth, "}");
        let (kind, stored) = match c_type(container.dtype) {
            Some("uint16_t") => ("uint16_t", "store_bf16((real)whole)".to_string()),
            Some(kind) => (kind, format!("({kind})whole")),
            None => ("char", "whole".to_string()),
        };
        printer.line(depth, format!("(({kind} *)p[{argument}])[{}] = {stored};", place.join(" + ")));
        for n in (0..tensor.shape.len()).rev() {
            printer.line(2 + n, "}");
        }
        printer.line(1, "}");
        which += 1;
    }
    Ok(())
}
