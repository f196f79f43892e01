//! The step as C: constants, kernels, launches, schedules and tensors.

use super::boundary::Boundary;
use super::flatten::{FlatForm, FlatKernel, Flattener, Group, LaunchPart, Schedules};
use super::text::{caps, number, string, table};
use kernels::c_form::GeneratedC;
use kernels::c_form::KernelStage;
use kernels::phases::Spread;
use kernels::processor::streams;
use kernels::target::cpu::canonical::canonical;
use kernels::{InstructionSet, c_form::Filled};
use sdfg::{Dtype, philox};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// The texts that are compiled, and which kernel runs which.
#[derive(Default)]
pub struct Texts<'a> {
    /// Number of the first kernel with a text, and the text.
    pub kernels: Vec<(usize, &'a str)>,
    /// Of each kernel, the number of the text's first kernel.
    of: Vec<usize>,
    pub libraries: Vec<Arc<str>>,
}

impl<'a> Texts<'a> {
    /// Kernels whose texts differ in names alone share one.
    pub fn of(kernels: &'a [FlatKernel<'a>]) -> Texts<'a> {
        let mut found = Texts::default();
        let mut known: BTreeMap<String, usize> = BTreeMap::new();
        for (n, kernel) in kernels.iter().enumerate() {
            let (key, text) = match &kernel.form {
                FlatForm::Generated(GeneratedC { source, .. }) => (canonical(&source.text, &source.names), source.text.as_str()),
                FlatForm::Scatter(scatter) => (scatter.text.clone(), scatter.text.as_str()),
            };
            let first = *known.entry(key).or_insert(n);
            if first == n {
                found.kernels.push((n, text));
            }
            found.of.push(first);
            if let FlatForm::Generated(GeneratedC { source, .. }) = &kernel.form
                && let Some(library) = source.library.as_ref().filter(|library| !found.libraries.contains(library))
            {
                found.libraries.push(library.clone());
            }
        }
        found
    }
}

/// Constants that all files share.
pub fn plan_h(name: &str, boundary: &Boundary, flat: &Flattener, schedules: &Schedules, most_threads: usize) -> String {
    let caps = caps(name);
    let groups = schedules.distinct.iter().flatten().chain(&schedules.once);
    let work = groups.map(|group| group.work.len()).max().unwrap_or(0).max(1);
    let constants: [(&str, usize); 11] = [
        ("MEMORIES", boundary.memories.len()),
        ("TENSORS", boundary.tensors.len()),
        ("MOST_THREADS", most_threads),
        ("MOST_ARGUMENTS", flat.most_arguments()),
        ("MOST_WORK", work),
        ("MASKS", masks(&flat.kernels).len()),
        ("SHARED_AT", flat.shared_at()),
        ("OWN_AT", flat.own_at()),
        ("OWN_STRIDE", flat.own_stride()),
        // Whether stores around the caches were found to be faster for what other cores read.
        ("STREAMS", usize::from(streams())),
        ("VECTOR_BYTES", InstructionSet::native().bytes()),
    ];
    let mut text = "/* Sizes of this plan. */\n".to_string();
    for (constant, value) in constants {
        let _ = writeln!(text, "#define {caps}_{constant} {value}");
    }
    text
}

/// Masks of all kernels, in order: the hash of the stream, and what is dropped in 65536.
fn masks(kernels: &[FlatKernel]) -> Vec<(u64, u32)> {
    let of = |kernel: &FlatKernel| match &kernel.form {
        FlatForm::Generated(generated) => generated.source.masks.clone(),
        FlatForm::Scatter(_) => vec![],
    };
    kernels.iter().flat_map(of).map(|mask| (philox::hash(&mask.stream), philox::dropped(mask.rate))).collect()
}

pub fn tables_c(name: &str, boundary: &Boundary, flat: &Flattener, schedules: &Schedules, texts: &Texts) -> String {
    let mut text = "/* The step as tables: what runs in which order on which memory. */\n#include \"internal.h\"\n\n".to_string();
    text += &kernels(name, flat, texts);
    let addresses = flat.addresses.iter().map(|a| format!("{{{}, {}}}", a.base, a.offset));
    text += &table(&format!("const {name}_address {name}_addresses[]"), addresses, "{0, 0}");
    let launches = flat.launches.iter().map(|l| format!("{{{}, {}, {}, {}}}", l.kernel, l.address, l.own, l.shared));
    text += &table(&format!("const {name}_launch {name}_launches[]"), launches, "{0, 0, 0, 0}");
    let masks = masks(&flat.kernels).into_iter().map(|(stream, threshold)| format!("{{UINT64_C({stream}), {threshold}}}"));
    text += &table(&format!("const {name}_mask {name}_masks[]"), masks, "{0, 0}");
    let fills = flat.fills.iter().map(fill).chain(["{0, 0, 0, 0}".to_string()]);
    text += &table(&format!("const {name}_fill {name}_fills[]"), fills, "");
    text += &schedule(name, "once", &schedules.once);
    let _ = writeln!(text, "const {name}_schedule {name}_once = {{items_once, groups_once, {}}};\n", schedules.once.len());
    for (n, groups) in schedules.distinct.iter().enumerate() {
        text += &schedule(name, &n.to_string(), groups);
        let _ = writeln!(text, "static const {name}_schedule schedule_{n} = {{items_{n}, groups_{n}, {}}};\n", groups.len());
    }
    let by_threads = schedules.by_threads.iter().map(|n| format!("&schedule_{n}"));
    text += &table(&format!("const {name}_schedule *const {name}_schedules[]"), by_threads, "");
    text += &tensors(name, boundary);
    text
}

fn kernels(name: &str, flat: &Flattener, texts: &Texts) -> String {
    let mut text = String::new();
    for (n, _) in &texts.kernels {
        match &flat.kernels[*n].form {
            FlatForm::Scatter(_) => drop(writeln!(text, "extern {name}_scatter_function {name}_scatter_{n} HIDDEN;")),
            FlatForm::Generated(GeneratedC { source, .. }) => {
                let _ = writeln!(text, "extern {name}_kernel_function {name}_kernel_{n} HIDDEN;");
                if source.preparations > 0 {
                    let _ = writeln!(text, "extern {name}_prepare_function {name}_prepare_{n} HIDDEN;");
                }
                if !source.partials.is_empty() {
                    let _ = writeln!(text, "extern {name}_finish_function {name}_finish_{n} HIDDEN;");
                }
            }
        }
    }
    for n in 0..texts.libraries.len() {
        for function in ["pack", "pack_rows", "gemm"] {
            let _ = writeln!(text, "extern {name}_function {name}_products_{n}_{function} HIDDEN;");
        }
    }
    text.push('\n');
    let (mut rows, mut mask) = (Vec::new(), 0);
    for (n, kernel) in flat.kernels.iter().enumerate() {
        let of = texts.of[n];
        let (stages, partials) = match &kernel.form {
            FlatForm::Generated(generated) => (generated.stages.iter().map(stage).collect::<Vec<_>>(), partials(generated)),
            FlatForm::Scatter(scatter) => (
                scatter.phases.iter().map(|copies| format!("{{{}, 0, 0}}", if *copies { "SCATTER_COPY" } else { "SCATTER_ADD" })).collect(),
                vec![],
            ),
        };
        let (stage_count, partial_count) = (stages.len(), partials.len());
        text += &table(&format!("static const {name}_stage stages_{n}[]"), stages.into_iter(), "{0, 0, 0}");
        if partial_count > 0 {
            text += &table(&format!("static const {name}_partial partials_{n}[]"), partials.into_iter(), "");
        }
        let mut fields = vec![format!("/* {} */ .arguments = {}", kernel.name.replace("*/", "* /"), kernel.arguments)];
        fields.push(format!(".stages = stages_{n}, .stage_count = {stage_count}"));
        match &kernel.form {
            FlatForm::Scatter(_) => fields.push(format!(".scatter = {name}_scatter_{of}")),
            FlatForm::Generated(GeneratedC { source, streams, divided, .. }) => {
                let integers = source.integers.iter().map(|n| number(*n));
                text += &table(&format!("static const int64_t integers_{n}[]"), integers, "0");
                fields.push(format!(".kernel = {name}_kernel_{of}, .integers = integers_{n}, .points = {}", source.points));
                if source.preparations > 0 {
                    fields.push(format!(".prepare = {name}_prepare_{of}, .preparations = {}", source.preparations));
                }
                if partial_count > 0 {
                    fields.push(format!(".finish = {name}_finish_{of}, .partials = partials_{n}, .partial_count = {partial_count}"));
                }
                if let Some(library) = source.library.as_ref().and_then(|l| texts.libraries.iter().position(|known| known == l)) {
                    let of = |function: &str| format!("{name}_products_{library}_{function}");
                    fields.push(format!(".pack = {}, .pack_lines = {}, .gemm = {}", of("pack"), of("pack_rows"), of("gemm")));
                }
                fields.push(format!(".step = {}, .points_of_step = {}", divided.0, divided.1));
                fields.push(format!(".first_mask = {mask}, .streams = {}, .is_double = {}", u8::from(*streams), u8::from(source.double)));
                mask += source.masks.len();
            }
        }
        rows.push(format!("{{{}}}", fields.join(",\n        ")));
    }
    text + &table(&format!("const {name}_kernel {name}_kernels[]"), rows.into_iter(), "{0}")
}

fn stage(stage: &KernelStage) -> String {
    match stage {
        KernelStage::Prepare => "{PREPARE, 0, 0}".into(),
        KernelStage::Points => "{POINTS, 0, 0}".into(),
        KernelStage::Combine(from, to) => format!("{{COMBINE, {from}, {to}}}"),
        KernelStage::CombineShared(which) => format!("{{COMBINE_SHARED, {which}, 0}}"),
    }
}

fn partials(generated: &GeneratedC) -> Vec<String> {
    let partial = |p: &kernels::target::cpu::emit::Partial| {
        let identity = super::text::double(p.combine.identity().first().copied().unwrap_or(0.0));
        format!("{{{}, {}, {}, {}, {identity}}}", p.at, p.total.map_or(-1, |at| at as i64), p.elements, p.steps)
    };
    generated.source.partials.iter().map(partial).collect()
}

fn fill(fill: &Filled) -> String {
    let bits = match fill.dtype {
        Dtype::F64 => fill.value.to_bits(),
        Dtype::F32 => u64::from((fill.value as f32).to_bits()),
        Dtype::Bf16 => u64::from(half::bf16::from_f64(fill.value).to_bits()),
        Dtype::F16 => u64::from(half::f16::from_f64(fill.value).to_bits()),
        // Two's complement, of which as many bytes are taken as the type has.
        _ => fill.value as i64 as u64,
    };
    format!("{{{}, {}, {}, UINT64_C({bits})}}", fill.at, fill.elements, fill.dtype.bytes(1))
}

fn schedule(name: &str, which: &str, groups: &[Group]) -> String {
    let (mut items, mut rows) = (Vec::new(), Vec::new());
    for group in groups {
        let before = items.len();
        items.extend(group.before.iter().map(item));
        let work = items.len();
        items.extend(group.work.iter().map(item));
        rows.push(format!("{{{before}, {}, {work}, {}}}", group.before.len(), group.work.len()));
    }
    table(&format!("static const {name}_item items_{which}[]"), items.into_iter(), "{0}")
        + &table(&format!("static const {name}_group groups_{which}[]"), rows.into_iter(), "{0}")
}

fn item(item: &LaunchPart) -> String {
    let (spread, count, parts) = match item.spread {
        Spread::Alone => ("ALONE", 0, 0),
        Spread::Fixed => ("FIXED", 0, 0),
        Spread::Items { count, parts } => ("ITEMS", count, parts),
    };
    let (size, step) = item.along.map_or((0, 0), |along| (along.size, along.step));
    let phase = item.phase.map_or(-1, |phase| phase as i64);
    format!("{{{}, {phase}, {spread}, {count}, {}, {size}, {step}}}", item.launch, number(parts))
}

fn tensors(name: &str, boundary: &Boundary) -> String {
    let mut text = String::new();
    let memories =
        boundary.memories.iter().map(|m| format!("{{{}, {}, {}, {}}}", string(&m.name), m.bytes, m.alignment, u8::from(m.is_written)));
    text += &table(&format!("const {name}_memory {name}_memories[]"), memories, "{0}");
    let mut rows = Vec::new();
    for (n, tensor) in boundary.tensors.iter().enumerate() {
        let rank = tensor.dims.len();
        if rank > 0 {
            text += &table(&format!("static const char *const dims_{n}[]"), tensor.dims.iter().map(|dim| string(dim)), "");
            text += &table(&format!("static const int64_t shape_{n}[]"), tensor.shape.iter().map(usize::to_string), "");
            let steps = tensor.steps.iter().map(|s| format!("{{{}, {}, {}}}", s.block, s.across, s.within));
            text += &table(&format!("static const int64_t steps_{n}[][3]"), steps, "");
        }
        if let Some(initial) = tensor.initial {
            let _ = writeln!(text, "static const double initial_{n} = {};\n", super::text::double(initial));
        }
        let of = |what: &str| if rank > 0 { format!("{what}_{n}") } else { "0".to_string() };
        rows.push(format!(
            "{{{}, \"{}\", \"{}\", {}, {}, {}, {}, {}, {}, {rank}, {}, {}, {}, {}}}",
            string(&tensor.name),
            tensor.role,
            tensor.dtype,
            string(&tensor.layout.to_string()),
            tensor.replaces.as_ref().map_or("0".to_string(), |parameter| string(parameter)),
            if tensor.initial.is_some() { format!("&initial_{n}") } else { "0".to_string() },
            tensor.dtype.bytes(1),
            tensor.memory,
            tensor.offset,
            u8::from(tensor.layout.is_plain()),
            of("dims"),
            of("shape"),
            of("steps"),
        ));
    }
    text + &table(&format!("const {name}_tensor {name}_tensors[]"), rows.into_iter(), "{0}")
}
