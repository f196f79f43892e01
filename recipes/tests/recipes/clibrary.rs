//! C libraries of plans: their steps beside those of this process, through the interface that their headers declare.

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::{InstructionSet, KernelSpec, Toolchain};
use ndarray::{ArrayD, IxDyn};
use recipes::clibrary::{Built, Options, build};
use recipes::load::{Overrides, load, load_str};
use recipes::pipeline::choose::plan::{FORMAT, Plan};
use recipes::pipeline::oracle::small_sizes::with_small_sizes;
use recipes::pipeline::oracle::tensors::random_inputs;
use recipes::pipeline::run::candidate::Candidate;
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::run::target::Target;
use recipes::pipeline::variants::programs::programs;
use sdfg::config::Configuration;
use sdfg::interpret::Tensors;
use sdfg::{Dtype, Layout, Sdfg};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

/// Sums whose terms are added in another order differ by this much of a tensor's largest element at most: products that a library computes
/// in one of the two are generated in the other.
const CLOSE: f64 = 2e-5;

const SEED: u64 = 7;

fn cores() -> Result<Arc<dyn Device>, Failure> {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into();
    Ok(Arc::new(Cores { toolchain: Toolchain { cache, ..Toolchain::system()? } }))
}

fn program(name: &str) -> Result<Sdfg, Failure> {
    let recipe = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml")), Overrides::default())?;
    Ok(with_small_sizes(&programs(&recipe, false)?.variants.remove(0).program))
}

/// A plan with configuration `n` of every kernel; tensors that a kernel wants in another layout lie in that one.
fn plan(name: &str, program: Sdfg, n: u64, packed: bool, device: &dyn Device) -> Result<Plan, Failure> {
    let layouts = program.containers.values().map(|c| (c.name.clone(), Layout::row_major(c))).collect();
    let mut configuration = Configuration { layouts, ..Configuration::default() };
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(&program, &unit)?;
        let config = device.space(&spec)?.config(n);
        configuration.layouts.extend(config.layouts.clone());
        configuration.kernels.insert(spec.name.clone(), config);
    }
    let chosen = Candidate {
        name: name.into(),
        program,
        configuration,
        predicted_ms: 0.0,
        streams: 1,
        packed,
        beside: 4,
        exchanges: vec![],
        measured_as: BTreeMap::new(),
    };
    Ok(Plan {
        format: FORMAT,
        recipe: format!("{name}.yaml"),
        text: String::new(),
        overrides: BTreeMap::new(),
        dtype: None,
        no_dropout: false,
        narrow: false,
        target: Target::default(),
        device: "a test".into(),
        toolchain: String::new(),
        threads: 2,
        command: String::new(),
        partial_fusion: None,
        barred: vec![],
        refused: None,
        choice: None,
        chosen,
        baselines: vec![],
    })
}

/// `NAME_tensor`.
#[repr(C)]
struct CTensor {
    name: *const c_char,
    role: *const c_char,
    dtype: *const c_char,
    layout: *const c_char,
    replaces: *const c_char,
    initial: *const f64,
    element_bytes: i32,
    memory: i32,
    offset: i64,
    rank: i32,
    is_plain: i32,
    dims: *const *const c_char,
    shape: *const i64,
    steps: *const [i64; 3],
}

/// `NAME_memory`.
#[repr(C)]
struct CMemory {
    name: *const c_char,
    bytes: i64,
    alignment: i32,
    is_written: i32,
}

/// A loaded library.
struct Library {
    library: libloading::Library,
    name: String,
}

impl Library {
    fn open(built: &Built) -> Result<Self, Failure> {
        let path = built.library.as_ref().ok_or("there is a compiler")?;
        // SAFETY: a library without initialisers, made just now.
        Ok(Library { library: unsafe { libloading::Library::new(path)? }, name: built.name.clone() })
    }

    /// # Safety
    /// The function has this type.
    unsafe fn function<T: Copy>(&self, function: &str) -> T {
        // SAFETY: as promised by the caller.
        let found = unsafe { self.library.get::<T>(format!("{}_{function}\0", self.name).as_bytes()) };
        *found.unwrap_or_else(|why| panic!("{function}: {why}"))
    }

    fn tensors(&self) -> Vec<&CTensor> {
        // SAFETY: as the header declares them.
        unsafe {
            let count = self.function::<extern "C" fn() -> i32>("tensor_count")();
            let at = self.function::<extern "C" fn(i32) -> *const CTensor>("tensor_at");
            assert!(at(count).is_null() && at(-1).is_null());
            (0..count).map(|n| &*at(n)).collect()
        }
    }

    /// Zeroed memories of the sizes that the library asks for, with a line of a value behind each.
    fn memories(&self) -> Vec<kernels::AlignedBuffer> {
        // SAFETY: as the header declares them.
        unsafe {
            let count = self.function::<extern "C" fn() -> i32>("memory_count")();
            let at = self.function::<extern "C" fn(i32) -> *const CMemory>("memory_at");
            (0..count).map(|n| kernels::AlignedBuffer::new((*at(n)).bytes as usize).expect("memory")).collect()
        }
    }

    fn create(&self, threads: i32, workspace: *mut c_void, bytes: usize) -> (c_int, *mut c_void) {
        let mut context = std::ptr::null_mut();
        // SAFETY: as the header declares it.
        let error = unsafe { self.function::<extern "C" fn(*mut *mut c_void, i32, *mut c_void, usize) -> c_int>("create") };
        (error(&mut context, threads, workspace, bytes), context)
    }

    fn destroy(&self, context: *mut c_void) {
        // SAFETY: as the header declares it.
        unsafe { self.function::<extern "C" fn(*mut c_void)>("destroy")(context) };
    }

    fn step(&self, context: *mut c_void, memories: *const *mut c_void, step: u64) -> c_int {
        // SAFETY: as the header declares it.
        let run = unsafe { self.function::<extern "C" fn(*mut c_void, *const *mut c_void, u64, u64, u32) -> c_int>("step") };
        run(context, memories, SEED, step, 0)
    }

    fn load(&self, given: &Tensors, memories: &mut [kernels::AlignedBuffer]) {
        // SAFETY: as the header declares it.
        let pack = unsafe { self.function::<extern "C" fn(i32, *const u8, *mut u8) -> c_int>("pack") };
        for (n, tensor) in self.tensors().into_iter().enumerate() {
            let Some(values) = given.get(text(tensor.name)) else { continue };
            let bytes: Vec<u8> = values.iter().flat_map(|v| bytes(text(tensor.dtype), *v)).collect();
            assert_eq!(pack(n as i32, bytes.as_ptr(), memories[tensor.memory as usize].as_mut_ptr()), 0);
        }
    }

    fn results(&self, memories: &[kernels::AlignedBuffer]) -> Tensors {
        // SAFETY: as the header declares it.
        let unpack = unsafe { self.function::<extern "C" fn(i32, *const u8, *mut u8) -> c_int>("unpack") };
        let mut found = Tensors::new();
        for (n, tensor) in self.tensors().into_iter().enumerate() {
            if ["input", "parameter"].contains(&text(tensor.role)) {
                continue;
            }
            // SAFETY: as many sizes as there are dims.
            let shape: Vec<usize> = (0..tensor.rank as usize).map(|d| unsafe { *tensor.shape.add(d) } as usize).collect();
            let size = tensor.element_bytes as usize;
            let mut values = vec![0u8; shape.iter().product::<usize>() * size];
            assert_eq!(unpack(n as i32, memories[tensor.memory as usize].as_ptr(), values.as_mut_ptr()), 0);
            let values = values.chunks(size).map(|bytes| number(text(tensor.dtype), bytes)).collect();
            found.insert(text(tensor.name).into(), ArrayD::from_shape_vec(IxDyn(&shape), values).expect("this shape"));
        }
        found
    }

    fn strerror(&self, error: c_int) -> &str {
        // SAFETY: as the header declares it.
        text(unsafe { self.function::<extern "C" fn(c_int) -> *const c_char>("strerror")(error) })
    }
}

fn text<'a>(of: *const c_char) -> &'a str {
    // SAFETY: the library's texts end with a zero and last as long as it is loaded.
    unsafe { CStr::from_ptr(of) }.to_str().expect("UTF-8")
}

fn bytes(dtype: &str, value: f64) -> Vec<u8> {
    match dtype {
        "f64" => value.to_ne_bytes().to_vec(),
        "f32" => (value as f32).to_ne_bytes().to_vec(),
        "i32" => (value as i32).to_ne_bytes().to_vec(),
        "i64" => (value as i64).to_ne_bytes().to_vec(),
        other => panic!("{other}"),
    }
}

fn number(dtype: &str, bytes: &[u8]) -> f64 {
    match dtype {
        "f64" => f64::from_ne_bytes(bytes.try_into().expect("eight bytes")),
        "f32" => f32::from_ne_bytes(bytes.try_into().expect("four bytes")).into(),
        "i32" => i32::from_ne_bytes(bytes.try_into().expect("four bytes")).into(),
        other => panic!("{other}"),
    }
}

fn pointers(memories: &mut [kernels::AlignedBuffer]) -> Vec<*mut c_void> {
    memories.iter_mut().map(|memory| memory.as_mut_ptr().cast()).collect()
}

/// The results of three steps of a library.
fn steps(library: &Library, given: &Tensors, threads: i32) -> Vec<Tensors> {
    let mut memories = library.memories();
    library.load(given, &mut memories);
    let all = pointers(&mut memories);
    let (error, context) = library.create(threads, std::ptr::null_mut(), 0);
    assert_eq!(error, 0, "{}", library.strerror(error));
    let run = |step| {
        assert_eq!(library.step(context, all.as_ptr(), step), 0);
        library.results(&memories)
    };
    let found = (0..3).map(run).collect();
    library.destroy(context);
    found
}

/// The largest difference of any result, relative to its tensor's largest element, or to a hundredth of all results' largest where that is
/// more: a gradient that is 0 in exact arithmetic, such as that of the keys' bias, holds rounding errors alone.
fn difference(right: &Tensors, found: &Tensors) -> f64 {
    assert_eq!(right.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    let most = |values: &ArrayD<f64>| values.iter().filter(|x| x.is_finite()).fold(1e-30, |most: f64, x| most.max(x.abs()));
    let least = right.values().map(most).fold(0.0, f64::max) / 100.0;
    let each = right.iter().map(|(name, right)| {
        let apart = right.iter().zip(found[name].iter()).map(|(a, b)| if a == b || a.is_nan() && b.is_nan() { 0.0 } else { (a - b).abs() });
        apart.fold(0.0, |most: f64, x| if x.is_nan() { f64::INFINITY } else { most.max(x) }) / most(right).max(least)
    });
    each.fold(0.0, f64::max)
}

fn built(plan: &Plan, name: &str, folder: &Path, packed: bool) -> Result<Built, Failure> {
    let options = Options { name: Some(name.into()), most_threads: 3, packed };
    Ok(build(plan, Path::new("plan.json"), folder, &options)?)
}

/// Training with an optimizer, dropout, loops over time, gathers and scatters: three steps of the library, on several
/// numbers of threads, have the results of three steps of this process.
#[test]
fn steps_of_a_library_have_the_same_results() -> Result<(), Failure> {
    let device = cores()?;
    let each =
        [("perceptron", 0, true), ("mha", 0, true), ("mha", 5, false), ("dyn-rnn", 0, true), ("bi-rnn", 5, false), ("word2vec", 0, false)];
    for (name, n, packed) in each {
        hold(name, program(name)?, n, packed, &device)?;
    }
    Ok(())
}

/// What parameters alone decide is computed in the first step and kept.
#[test]
fn what_is_done_once_is_kept() -> Result<(), Failure> {
    let text = "model: m\ndims: {n: 20, c: 30, o: 40}\ninputs: {x: [n, c]}\nparameters: {k: [o, c], v: [o], g: [o]}\nsteps:\n  \
                - \"s[o] = g * rsqrt(v * v + 1)\"\n  - \"t[n,o] = k[o,c] * x[n,c]\"\n  - \"y[n,o] = t * s[o]\"\n";
    let recipe = load_str("m.yaml", text, &[]).map_err(|errors| errors.to_string())?;
    hold("m", programs(&recipe, false)?.unfused, 0, false, &cores()?)
}

/// Holds three steps of a plan's library against those of this process.
fn hold(name: &str, program: Sdfg, n: u64, packed: bool, device: &Arc<dyn Device>) -> Result<(), Failure> {
    let plan = plan(name, program, n, packed, &**device)?;
    let given = random_inputs(&plan.chosen.program, 3)?;
    let folder = tempfile::tempdir()?;
    let library = Library::open(&built(&plan, "tested", folder.path(), packed)?)?;
    for threads in [1, 2, 3] {
        let pool = Pool::new(threads)?;
        let mut execution = Execution::of(&plan.chosen, device)?;
        execution.load(&given)?;
        for (step, found) in steps(&library, &given, threads as i32).iter().enumerate() {
            execution.step(&pool, SEED, step as u64, true)?;
            let error = difference(&execution.results()?, found);
            assert!(error < CLOSE, "{name}, configuration {n}, packed {packed}, {threads} threads, step {step}: {error}");
        }
    }
    Ok(())
}

/// Two threads run steps in contexts of their own at the same time, and each finds what it would have found alone.
#[test]
fn contexts_are_independent() -> Result<(), Failure> {
    let device = cores()?;
    let plan = plan("mha", program("mha")?, 0, true, &*device)?;
    let folder = tempfile::tempdir()?;
    let library = Library::open(&built(&plan, "tested", folder.path(), true)?)?;
    let given = [3, 4].map(|seed| random_inputs(&plan.chosen.program, seed));
    let [first, second] = given;
    let (first, second) = (first?, second?);
    let right = [&first, &second].map(|given| steps(&library, given, 2));
    std::thread::scope(|scope| {
        let runs: Vec<_> =
            [&first, &second].map(|given| scope.spawn(|| (0..20).map(|_| steps(&library, given, 2)).collect::<Vec<_>>())).into();
        for (right, run) in right.iter().zip(runs) {
            for found in run.join().expect("no panic") {
                assert_eq!(*right, found);
            }
        }
    });
    Ok(())
}

/// What the last kernel overwrites lies in the caller's memory of the result, and what that overwrites, too: of three tensors of 64 KiB no
/// more than the product's packed operands are in the workspace. What is read after the result has been written stays there.
#[test]
fn what_a_result_overwrites_lies_in_it() -> Result<(), Failure> {
    let recipe = "model: lies\ndims: {i: 128, j: 128, k: 8}\ninputs:\n  x: {dims: [i, k]}\n  w: {dims: [k, j]}\n  c: {dims: [j]}\nsteps:\n  \
                  - t[i,j] = x[i,k] * w[k,j]\n  - s[i,j] = t[i,j] + c[j]\n  - y[i,j] = tanh(s[i,j])\noutputs: [y]\n";
    let device = cores()?;
    let bytes = |text: &str| -> Result<usize, Failure> {
        let recipe = load_str("lies.yaml", text, &[]).map_err(|errors| errors.to_string())?;
        let program = programs(&recipe, false)?.unfused;
        let plan = plan("lies", program, 0, false, &*device)?;
        let folder = tempfile::tempdir()?;
        let library = Library::open(&built(&plan, "lies", folder.path(), false)?)?;
        let given = random_inputs(&plan.chosen.program, 3)?;
        let mut execution = Execution::of(&plan.chosen, &device)?;
        execution.load(&given)?;
        execution.step(&Pool::new(2)?, SEED, 0, true)?;
        assert!(difference(&execution.results()?, &steps(&library, &given, 2)[0]) < CLOSE);
        // SAFETY: as the header declares it.
        Ok(unsafe { library.function::<extern "C" fn(i32) -> usize>("workspace_bytes")(1) })
    };
    let tensor = 128 * 128 * 4;
    let lies = bytes(recipe)?;
    assert!(lies < tensor, "{lies}");
    // What is read after the result has been written lies elsewhere.
    let apart = bytes(&recipe.replace("outputs: [y]", "  - z[j] = sum(y[i,j] * s[i,j], over: [i])\noutputs: [y, z]"))?;
    assert!(apart >= lies + tensor, "{apart} and {lies}");
    Ok(())
}

/// What a caller gets wrong is an error with a text, and nothing is run.
#[test]
fn mistakes_are_errors() -> Result<(), Failure> {
    let device = cores()?;
    let plan = plan("mlp", program("mlp")?, 0, false, &*device)?;
    let folder = tempfile::tempdir()?;
    let library = Library::open(&built(&plan, "tested", folder.path(), false)?)?;
    let said = |error: c_int, what: &str| assert!(library.strerror(error).contains(what), "{error}: {}", library.strerror(error));
    for threads in [0, -1, 4] {
        let (error, context) = library.create(threads, std::ptr::null_mut(), 0);
        said(error, "number of threads");
        assert!(context.is_null());
    }
    // SAFETY: as the header declares it.
    let (needed, none) = unsafe {
        let needed = library.function::<extern "C" fn(i32) -> usize>("workspace_bytes");
        (needed, needed(4))
    };
    assert_eq!(none, 0);
    let mut workspace = kernels::AlignedBuffer::new(needed(2))?;
    let place = workspace.as_mut_ptr();
    said(library.create(2, place.cast(), needed(2) - 1).0, "workspace is smaller");
    said(library.create(2, place.wrapping_add(8).cast(), needed(2)).0, "multiple of 64");
    let (error, context) = library.create(2, place.cast(), needed(2));
    assert_eq!(error, 0);
    let mut memories = library.memories();
    library.load(&random_inputs(&plan.chosen.program, 3)?, &mut memories);
    let all = pointers(&mut memories);
    said(library.step(std::ptr::null_mut(), all.as_ptr(), 0), "null");
    said(library.step(context, std::ptr::null(), 0), "null");
    let (mut missing, mut askew) = (all.clone(), all.clone());
    missing[1] = std::ptr::null_mut();
    askew[0] = askew[0].wrapping_byte_add(1);
    said(library.step(context, missing.as_ptr(), 0), "null");
    said(library.step(context, askew.as_ptr(), 0), "multiple of the element's size");
    assert_eq!(library.step(context, all.as_ptr(), 0), 0);
    library.destroy(context);
    library.destroy(std::ptr::null_mut());
    Ok(())
}

/// The compiler for 64-bit Arm and what runs its programs elsewhere, as Debian calls them (gcc-aarch64-linux-gnu, qemu-user).
const ARM: [&str; 2] = ["aarch64-linux-gnu-gcc", "qemu-aarch64"];

/// A step compiled for 64-bit Arm, with its products, exponentials, error functions and masks in NEON's vectors, has the results of this
/// process. It runs in a process that writes code for vectors of that width.
#[test]
fn libraries_run_on_arm() -> Result<(), Failure> {
    if let Some(missing) = ARM.iter().find(|tool| Command::new(tool).arg("--version").output().is_err()) {
        println!("skipped: no {missing}");
        return Ok(());
    }
    if InstructionSet::native() != InstructionSet::Neon {
        let mut again = Command::new(std::env::current_exe()?);
        again.args(["--exact", "clibrary::libraries_run_on_arm"]).env("MEMLET_INSTRUCTIONS", "neon");
        let output = again.output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return Ok(());
    }
    let device = cores()?;
    for (name, n) in [("mha", 0), ("mha", 5), ("bert-base-encoder", 0)] {
        let plan = plan(name, program(name)?, n, true, &*device)?;
        let folder = tempfile::tempdir()?;
        built(&plan, "tested", folder.path(), true)?;
        let (given, data) = (random_inputs(&plan.chosen.program, 3)?, folder.path().join("data"));
        std::fs::create_dir(&data)?;
        for (name, values) in &given {
            let values: Vec<u8> = values.iter().flat_map(|v| bytes("f32", *v)).collect();
            std::fs::write(data.join(format!("{name}.bin")), values)?;
        }
        let script = format!(
            "set -e; for f in src/*.c example.c; do {0} -O2 -std=gnu11 -Iinclude -Isrc -c $f -o $f.o; done
            for f in src/kernels/*.c; do {0} {flags} -Iinclude -Isrc -c $f -o $f.o; done
            {0} -static src/*.o src/kernels/*.o example.c.o -lm -lpthread -o example; {1} ./example 2 1 data",
            ARM[0],
            ARM[1],
            flags = Toolchain::texts().code_flags().join(" "),
        );
        let ran = Command::new("sh").args(["-c", &script]).current_dir(folder.path()).output()?;
        assert!(ran.status.success(), "{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        let mut execution = Execution::of(&plan.chosen, &device)?;
        execution.load(&given)?;
        execution.step(&Pool::new(2)?, 1, 0, true)?;
        let mut found = Tensors::new();
        for (name, right) in execution.results()? {
            let bytes = std::fs::read(data.join(format!("{name}.bin")))?;
            let values = bytes.chunks(4).map(|bytes| number("f32", bytes)).collect();
            found.insert(name.clone(), ArrayD::from_shape_vec(right.raw_dim(), values)?);
        }
        let error = difference(&execution.results()?, &found);
        assert!(error < CLOSE, "{name}, configuration {n}: {error}");
    }
    Ok(())
}

/// The example compiles without a warning, reads tensors from files, and writes the results of this process.
#[test]
fn the_example_runs() -> Result<(), Failure> {
    let device = cores()?;
    let plan = plan("perceptron", program("perceptron")?, 0, true, &*device)?;
    let (folder, data) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let built = built(&plan, "tested", folder.path(), true)?;
    let given = random_inputs(&plan.chosen.program, 3)?;
    for (name, values) in &given {
        let container = &plan.chosen.program.containers[name];
        let dtype = if container.dtype == Dtype::I32 { "i32" } else { "f32" };
        std::fs::write(data.path().join(format!("{name}.bin")), values.iter().flat_map(|v| bytes(dtype, *v)).collect::<Vec<u8>>())?;
    }
    let example = folder.path().join("example");
    let compiler = Command::new("cc")
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Iinclude", "example.c", "-o"])
        .arg(&example)
        .args(["-L.", "-ltested", "-Wl,-rpath,$ORIGIN"])
        .current_dir(folder.path())
        .output()?;
    assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
    let ran = Command::new(&example).args(["2", "1"]).arg(data.path()).output()?;
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    assert!(String::from_utf8_lossy(&ran.stdout).contains("fastest step"));
    let mut execution = Execution::of(&plan.chosen, &device)?;
    execution.load(&given)?;
    execution.step(&Pool::new(2)?, 1, 0, true)?;
    let mut found = Tensors::new();
    for (name, right) in execution.results()? {
        let bytes = std::fs::read(data.path().join(format!("{name}.bin")))?;
        let values = bytes.chunks(4).map(|bytes| number("f32", bytes)).collect();
        found.insert(name.clone(), ArrayD::from_shape_vec(right.raw_dim(), values)?);
    }
    assert!(difference(&execution.results()?, &found) < CLOSE);
    assert!(Path::new(&built.library.ok_or("a library")?).is_file());
    Ok(())
}

/// Plans of GPUs are refused with the file and what to do.
#[test]
fn plans_of_other_devices_are_refused() -> Result<(), Failure> {
    let device = cores()?;
    let plan = Plan { target: "cuda".parse()?, ..plan("mlp", program("mlp")?, 0, false, &*device)? };
    let folder = tempfile::tempdir()?;
    let error = built(&plan, "tested", folder.path(), false).err().ok_or("it is refused")?.to_string();
    assert!(error.starts_with("plan.json: its kernels are made for cuda") && error.contains("without --device"), "{error}");
    assert!(std::fs::read_dir(folder.path())?.next().is_none(), "nothing was written");
    Ok(())
}
