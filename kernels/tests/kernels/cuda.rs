//! Generated CUDA kernels, run on the CPU by the shim, against the interpreter.

use crate::common::{self, CASES, Case};
use crate::harness::{self, Failure, Reference, shim};
use kernels::target::cuda;
use kernels::target::cuda::emit::Chip;
use kernels::target::cuda::maps::CudaSpace;
use kernels::{ConfigSpace, KernelSpec};
use sdfg::Dtype;
use sdfg::config::{KernelConfig, Knobs};

const SIZES: common::Sizes = &[("b", 2), ("h", 2), ("j", 7), ("k", 37), ("i", 21), ("u", 70)];

/// Runs configurations of every case. All kernels are one compilation: what they have in common takes the compiler longest.
fn each_case(sizes: common::Sizes, dtype: Dtype, configs: impl Fn(&CudaSpace) -> Vec<KernelConfig>) -> Result<usize, Failure> {
    let (mut cases, mut sources) = (Vec::new(), Vec::new());
    for (name, make) in CASES {
        let Case { mut program, unit } = make(sizes);
        for container in program.containers.values_mut() {
            container.dtype = dtype;
        }
        let reference = Reference::new(&program, &unit)?;
        let configs = configs(&CudaSpace::new(&reference.spec, Chip::HOPPER)?);
        for config in &configs {
            sources.push(cuda::maps::source(&reference.spec, config, Chip::HOPPER)?);
        }
        cases.push((name, reference, configs));
    }
    let checked = harness::each_equals(&cases, sources)?;
    println!("{checked} configurations of {} kernels in {dtype}", CASES.len());
    Ok(checked)
}

/// A fixed spread of configurations: a step with no small factor in common with the radices visits all of their digits.
fn spread(space: &CudaSpace, wanted: u64) -> Vec<KernelConfig> {
    let count = space.count();
    (0..wanted).map(|n| space.config((n * 1_000_003 + n * n / 2 * 7919) % count)).collect()
}

#[test]
fn every_case_equals_the_interpreter_over_its_space() -> Result<(), Failure> {
    let checked = each_case(SIZES, Dtype::F32, |space| spread(space, 16))?;
    assert_eq!(checked, 16 * CASES.len());
    Ok(())
}

#[test]
fn results_are_transposed_on_their_way_out() -> Result<(), Failure> {
    let turned = |space: &CudaSpace| {
        let all = (0..4000).map(|n| space.config(n * 1_000_003 % space.count()));
        all.filter(|config| config.knobs.get("out") == Some("turned")).take(6).collect::<Vec<_>>()
    };
    for dtype in [Dtype::F32, Dtype::Bf16] {
        assert!(each_case(SIZES, dtype, turned)? > 3 * CASES.len(), "most kernels have results that can be turned");
    }
    // Vectors across a result: it is what leaves through shared memory, and one thread writes no single elements.
    let Case { program, unit } = common::gelu(SIZES);
    let spec = kernels::KernelSpec::new(&program, &unit)?;
    let knobs = Knobs::default().with("vector", "j").with("order", "b,j,u").with("rows", 32);
    let text = |out: &str| {
        cuda::maps::source(&spec, &KernelConfig { knobs: knobs.clone().with("out", out), ..KernelConfig::default() }, Chip::HOPPER)
    };
    let (direct, turned) = (text("direct")?.text, text("turned")?.text);
    assert!(turned.contains("turn_rows(t_y, ") && !direct.contains("turn_rows(t_y, "));
    // Where nothing lies across, the knob changes nothing.
    let along = |out: &str| {
        let knobs = Knobs::default().with("out", out);
        cuda::maps::source(&spec, &KernelConfig { knobs, ..KernelConfig::default() }, Chip::HOPPER).map(|source| source.text)
    };
    assert_eq!(along("direct")?, along("turned")?);
    Ok(())
}

/// A block's last rows may have no point of their own: what they hold on chip they compute all the same, and write nothing.
#[test]
fn rows_on_chip_are_written_by_rows_without_a_point() -> Result<(), Failure> {
    let Case { program, unit } = common::softmax(SIZES);
    let reference = Reference::new(&program, &unit)?;
    let knobs = [("vector", "k"), ("rows", "8"), ("hold", "shared"), ("loops", "two"), ("out", "turned")];
    let knobs = knobs.iter().fold(Knobs::default(), |knobs, (key, value)| knobs.with(key, value));
    let layouts = [("y".to_string(), "h,b,k,j".parse()?)].into();
    let config = KernelConfig { layouts, knobs };
    let source = cuda::maps::source(&reference.spec, &config, Chip::HOPPER)?;
    assert!(source.text.contains("turn_rows(t_y, ") && source.text.contains("(t_t_exp, "), "{}", source.text);
    let kernel = shim().compile(vec![source])?.remove(0);
    let (ratio, place) = reference.ratio(&reference.emulate(&kernel, &config, 1)?);
    assert!(ratio <= 1.0, "{place}");
    Ok(())
}

/// Blocks for which there are no points are none, and what has one text has one name.
#[test]
fn what_has_one_name_has_one_text() -> Result<(), Failure> {
    for (name, make) in CASES {
        let Case { program, unit } = make(SIZES);
        let spec = kernels::KernelSpec::new(&program, &unit)?;
        let space = CudaSpace::new(&spec, Chip::HOPPER)?;
        let mut texts: std::collections::BTreeMap<String, String> = Default::default();
        for n in 0..600 {
            let n = n * 1_000_003 % space.count();
            let text = cuda::maps::source(&spec, &space.config(n), Chip::HOPPER)?.text;
            let known = texts.entry(space.identity(n)).or_insert_with(|| text.clone());
            assert!(*known == text, "{name}: {}", space.config(n));
        }
    }
    Ok(())
}

/// Every way from one layout to another, through every element type.
#[test]
fn relayouts_move_every_element() -> Result<(), Failure> {
    use kernels::AlignedBuffer;
    use kernels::target::shim::ShimRun;
    use ndarray::ArrayD;
    use sdfg::{Container, Layout, Role};
    let dims: Vec<(String, i64)> = [("a", 5), ("b", 37), ("c", 19)].map(|(d, n)| (d.to_string(), n)).into();
    let (names, shape): (Vec<String>, Vec<usize>) = dims.iter().map(|(d, n)| (d.clone(), *n as usize)).unzip();
    let layouts = Layout::permutations(&names);
    let (mut cases, mut sources) = (Vec::new(), Vec::new());
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F64, Dtype::I64, Dtype::I32] {
        for (n, from) in layouts.iter().enumerate() {
            // Of the wider and the narrower types some will do.
            let to = layouts.iter().enumerate().filter(|(m, _)| *m != n && (dtype == Dtype::F32 || (m + n) % 4 == 1));
            for (_, to) in to {
                let (spec, source) = cuda::relayout::source("x", dtype, &dims, from, to)?;
                cases.push((dtype, spec, from, to));
                sources.push(source);
            }
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (kernel, (dtype, spec, from, to)) in shim().compile(sources)?.iter().zip(&cases) {
        let container = Container::new("x", &names, *dtype, Role::Input);
        // Whole numbers beyond those of f32.
        let first = if matches!(dtype, Dtype::I64 | Dtype::I32) { 16_777_217.0 } else { 0.0 };
        let values = (0..shape.iter().product::<usize>()).map(|n| dtype.rounded(first + n as f64));
        let array = ArrayD::from_shape_vec(shape.clone(), values.collect())?;
        let mut buffers = vec![AlignedBuffer::of(&container, &shape, from)?, AlignedBuffer::of(&container, &shape, to)?];
        buffers[0].pack(&container, from, &array)?;
        let run = ShimRun { run: harness::RUN, order: 3 };
        let unwritten = kernel.run(spec, &mut buffers, &run).map_err(|e| format!("{from} to {to} in {dtype}: {e}"))?;
        assert!(unwritten.is_empty(), "{from} to {to} in {dtype}: {unwritten:?}");
        assert_eq!(buffers[1].unpack(&container, to, &shape)?, array, "{from} to {to} in {dtype}");
    }
    println!("{} relayouts", cases.len());
    Ok(())
}

#[test]
fn half_precision_storage() -> Result<(), Failure> {
    each_case(SIZES, Dtype::Bf16, |space| spread(space, 4))?;
    each_case(SIZES, Dtype::F16, |space| spread(space, 4))?;
    Ok(())
}

#[test]
fn double_precision() -> Result<(), Failure> {
    each_case(SIZES, Dtype::F64, |space| spread(space, 2))?;
    Ok(())
}

#[test]
fn dims_of_size_one() -> Result<(), Failure> {
    each_case(&[("b", 1), ("h", 1), ("j", 5), ("k", 1), ("i", 1), ("u", 3)], Dtype::F32, |space| spread(space, 4))?;
    Ok(())
}

/// Rows longer than what a team holds in registers, few blocks for many points.
#[test]
fn long_rows_and_few_blocks() -> Result<(), Failure> {
    let sizes = &[("b", 1), ("h", 1), ("j", 5), ("k", 700), ("i", 1030), ("u", 259)];
    let knobs = Knobs::default().with("threads", 32).with("blocks", 2);
    let configs = ["registers", "shared"].map(|hold| {
        let knobs = knobs.clone().with("rows", 4).with("width", 2).with("hold", hold);
        KernelConfig { knobs, ..KernelConfig::default() }
    });
    each_case(sizes, Dtype::F32, |_| configs.to_vec())?;
    Ok(())
}

#[test]
fn indices_of_64_bits_where_32_do_not_suffice() -> Result<(), Failure> {
    let index = |sizes: common::Sizes| -> Result<bool, Failure> {
        let Case { program, unit } = common::gelu(sizes);
        let source = cuda::maps::source(&kernels::KernelSpec::new(&program, &unit)?, &KernelConfig::default(), Chip::HOPPER)?;
        assert!(source.grid <= i64::from(i32::MAX));
        Ok(source.text.contains("typedef long long index_t;"))
    };
    assert!(!index(&[("b", 96), ("j", 512), ("u", 4096)])?);
    assert!(index(&[("b", 96), ("j", 5120), ("u", 40960)])?);
    assert!(index(&[("b", 1 << 30), ("j", 1 << 20), ("u", 8)])?);
    // Strips go beyond the end of what is short.
    assert!(index(&[("b", 96), ("j", 1 << 17), ("u", 1)])? && !index(&[("b", 96), ("j", 1 << 15), ("u", 1)])?);
    Ok(())
}

/// A small part of a container with more elements than 32 bits can number, of which nothing else is touched.
#[test]
fn elements_beyond_32_bits() -> Result<(), Failure> {
    const WHOLE: [usize; 3] = [3, 1 << 15, 1 << 15];
    let sizes: common::Sizes = &[("b", 2), ("j", 7), ("u", 37)];
    let shape = [2, 7, 37];
    let offsets = [0, 1, 2].map(|n| WHOLE[n] - shape[n]);
    let Case { mut program, unit } = common::gelu(sizes);
    for container in program.containers.values_mut() {
        container.dtype = Dtype::Bf16;
    }
    let reference = Reference::new(&program, &unit)?;
    let config = KernelConfig::default();
    let plain = cuda::maps::source(&reference.spec, &config, Chip::HOPPER)?;

    let names = ["b.whole", "j.whole", "u.whole"];
    for (name, size) in names.iter().zip(WHOLE) {
        program.dims.insert(name.to_string(), sdfg::Expr::Int(size as i64));
    }
    program.add_container(sdfg::Container::new("whole", &names, Dtype::Bf16, sdfg::Role::Input));
    let view = sdfg::View { of: "whole".into(), offsets: offsets.map(|n| sdfg::Expr::Int(n as i64)).into() };
    program.containers["x"].view = Some(view);
    let spec = kernels::KernelSpec::new(&program, &unit)?;
    let part = cuda::maps::source(&spec, &config, Chip::HOPPER)?;
    assert!(part.text.contains("typedef long long index_t;"));
    let mut short = part.clone();
    short.text = short.text.replace("typedef long long index_t;", "typedef int index_t;");

    let kernels = shim().compile(vec![plain, part, short])?;
    let expected = reference.emulate(&kernels[0], &config, 0)?;
    assert!(reference.ratio(&expected).0 <= 1.0);

    let bytes = WHOLE.iter().product::<usize>() * 2;
    // No larger than what the system gives anyway: memory that is aligned further is zeroed by hand, all of it.
    let memory = std::alloc::Layout::from_size_align(bytes, 16)?;
    // SAFETY: the size is not zero; freed below.
    let whole = unsafe { std::alloc::alloc_zeroed(memory) };
    if whole.is_null() {
        println!("skipped: the system has no {bytes} bytes of addresses to give");
        return Ok(());
    }
    for (at, value) in reference.given["x"].indexed_iter() {
        let place = (0..3).fold(0, |place, n| place * WHOLE[n] + offsets[n] + at[n]);
        // SAFETY: within the memory.
        unsafe { whole.cast::<half::bf16>().add(place).write(half::bf16::from_f64(*value)) };
    }
    let mut y = kernels::AlignedBuffer::of(&program.containers["y"], &shape, &sdfg::Layout::row_major(&program.containers["y"]))?;
    let arguments = spec.arguments();
    let mut run = |kernel: &kernels::target::shim::ShimKernel| {
        let mut place = |data: &str| if data == "whole" { (whole, bytes) } else { (y.as_mut_ptr(), y.len()) };
        let memory: Vec<(*mut u8, usize)> = arguments.iter().map(|a| place(&a.data)).collect();
        let run = kernels::target::shim::ShimRun { run: harness::RUN, order: 0 };
        // SAFETY: both are there.
        unsafe { kernel.run_at(&spec.name, &arguments, &memory, &run) }
    };
    let (refused, unwritten) = (run(&kernels[2]), run(&kernels[1])?);
    // SAFETY: allocated above with the same layout.
    unsafe { std::alloc::dealloc(whole, memory) };
    assert!(refused.is_err(), "indices of 32 bits reach other places");
    assert!(unwritten.is_empty());
    let layout = sdfg::Layout::row_major(&program.containers["y"]);
    assert_eq!(y.unpack(&program.containers["y"], &layout, &shape)?, expected["y"]);
    Ok(())
}

#[test]
fn knobs_that_do_not_exist_are_refused() -> Result<(), Failure> {
    let Case { program, unit } = common::gelu(SIZES);
    let spec = kernels::KernelSpec::new(&program, &unit)?;
    for (key, value) in [
        ("threads", "48"),
        ("threads", "4096"),
        ("rows", "3"),
        ("rows", "4"),
        ("width", "16"),
        ("loops", "3"),
        ("hold", "x"),
        ("out", "x"),
        ("unroll", "0"),
    ] {
        let config = KernelConfig { knobs: Knobs::default().with(key, value), ..KernelConfig::default() };
        let error = cuda::maps::source(&spec, &config, Chip::HOPPER).expect_err("refused").to_string();
        assert!(error.contains(&format!("`{key}={value}`")), "{error}");
    }
    Ok(())
}

/// The code of a kernel says nothing of a run: what decides about its masks is read from memory.
#[test]
fn masks_follow_what_is_drawn() -> Result<(), Failure> {
    use kernels::target::shim::ShimRun;
    use sdfg::interpret::Run;
    let Case { program, unit } = common::softmax_dropout(SIZES);
    let config = KernelConfig::default();
    let mut reference = Reference::new(&program, &unit)?;
    let kernel = shim().compile(vec![cuda::maps::source(&reference.spec, &config, Chip::HOPPER)?])?.remove(0);
    for run in [(0, 0, true), (11, 5, true), (11, 6, true), (u64::MAX, 1 << 40, true), (11, 5, false)] {
        let run = Run { seed: run.0, step: run.1, dropout: run.2 };
        reference.expect(&program, &unit, &run)?;
        let (ratio, place) = reference.ratio(&reference.emulate_as(&kernel, &config, ShimRun { run, order: 1 })?);
        assert!(ratio <= 1.0, "{place}, {ratio} times the tolerance, as {run:?}");
    }
    Ok(())
}

/// Sizes at which strips come out even, and eight rows are one block of a mask whose neighbours they are.
const EVEN: common::Sizes = &[("b", 2), ("h", 2), ("j", 16), ("k", 64), ("i", 64), ("u", 64)];

#[test]
fn even_strips_equal_the_interpreter() -> Result<(), Failure> {
    let count = each_case(EVEN, Dtype::Bf16, |space| spread(space, 12))?;
    assert!(count >= 60, "{count} configurations were run");
    Ok(())
}

/// Rows of a block are neighbours of the mask: they draw together, whether they come out even or not; and a team that comes to one
/// after the other holds what it has drawn.
#[test]
fn masks_across_the_vectors_are_drawn_once_for_eight() -> Result<(), Failure> {
    let rows = |threads: u32, rows: u32, width: u32| {
        let knobs = Knobs::default().with("threads", threads).with("rows", rows).with("width", width);
        KernelConfig { knobs, ..KernelConfig::default() }
    };
    for (make, configs, drawn) in [
        (common::dropout_across as common::Make, vec![rows(256, 8, 2), rows(256, 16, 4), rows(64, 8, 8)], "keep_rows(mask"),
        (common::dropout_across_summed, vec![rows(256, 1, 1), rows(32, 1, 8), rows(128, 8, 4)], "keep_turn(mask"),
    ] {
        for sizes in [EVEN, SIZES] {
            let Case { program, unit } = make(sizes);
            let reference = Reference::new(&program, &unit)?;
            let sources: Result<Vec<_>, _> = configs.iter().map(|c| cuda::maps::source(&reference.spec, c, Chip::HOPPER)).collect();
            let sources = sources?;
            assert!(sources.iter().any(|s| s.text.contains(drawn)), "{drawn} is not in {}", sources[0].text);
            for (kernel, config) in shim().compile(sources)?.iter().zip(&configs) {
                let (ratio, place) = reference.ratio(&reference.emulate(kernel, config, 1)?);
                assert!(ratio <= 1.0, "{place}, {ratio} times the tolerance, under {config}");
            }
        }
    }
    Ok(())
}

/// A team that stays reads the next point's rows while sums of this one meet: of its last point the last again, and none where it has
/// no point. Where rows do not come out even, it waits as ever.
#[test]
fn teams_look_ahead() -> Result<(), Failure> {
    let knobs = |threads: u32, rows: u32, width: u32, blocks: u32, loops: &str| {
        let knobs = Knobs::default().with("threads", threads).with("rows", rows).with("width", width).with("blocks", blocks);
        KernelConfig { knobs: knobs.with("loops", loops).with("next", "ahead"), ..KernelConfig::default() }
    };
    let configs = [
        knobs(64, 1, 1, 3, "one"),
        knobs(32, 1, 2, 5, "two"),
        knobs(64, 4, 4, 2, "one"),
        knobs(128, 4, 2, 40, "two"),
        knobs(32, 4, 8, 1, "one"),
    ];
    let mut looking = 0;
    for (sizes, dtype) in [(EVEN, Dtype::F32), (EVEN, Dtype::Bf16), (SIZES, Dtype::F32)] {
        each_case(sizes, dtype, |_| configs.to_vec())?;
        for (name, make) in CASES {
            let Case { mut program, unit } = make(sizes);
            program.containers.values_mut().for_each(|c| c.dtype = dtype);
            let spec = KernelSpec::new(&program, &unit)?;
            for config in &configs {
                let text = cuda::maps::source(&spec, config, Chip::HOPPER)?.text;
                let ahead = text.contains("ahead(min_of(point + by, to - 1));");
                assert!(!ahead || sizes == EVEN, "{name} under {config}");
                looking += usize::from(ahead);
            }
        }
    }
    assert!(looking >= 20, "{looking} kernels look ahead");
    Ok(())
}
