//! Generated map kernels against the interpreter, over layouts and knobs.

mod common;

use common::{CASES, Case};
use kernels::device::cpu::Pool;
use kernels::maps::{self, MapSpace};
use kernels::{Access, Buffer, Completion, Executable, KernelSpec, RunContext, Space, Toolchain};
use ndarray::ArrayD;
use sdfg::config::KernelConfig;
use sdfg::interpret::{Run, Tensors, interpret_unit};
use sdfg::{Layout, random};

const SIZES: common::Sizes = &[("b", 3), ("h", 2), ("j", 19), ("k", 37), ("i", 21), ("u", 70)];
const RUN: Run = Run { seed: 11, step: 5, dropout: true };

type Failure = Box<dyn std::error::Error>;

/// What these tests compile stays in the build folder.
fn toolchain() -> Result<Toolchain, Failure> {
    let system = Toolchain::system()?;
    Ok(Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..system })
}

fn tensors(spec: &KernelSpec) -> Result<Tensors, Failure> {
    let mut found = Tensors::new();
    for argument in spec.arguments().iter().filter(|a| a.access == Access::Read) {
        let shape = spec.shape(&argument.data)?;
        let values = random::tensor(3, &argument.data, shape.iter().product());
        found.insert(argument.data.clone(), ArrayD::from_shape_vec(shape, values)?);
    }
    Ok(found)
}

fn run(spec: &KernelSpec, config: &KernelConfig, given: &Tensors, pool: &Pool) -> Result<Tensors, Failure> {
    let kernel = maps::compile(spec, config, &toolchain()?)?.streaming(pool.workers() > 1);
    let arguments = spec.arguments();
    let mut buffers = Vec::new();
    for argument in &arguments {
        let container = &spec.containers[argument.data.as_str()];
        let (layout, shape) = (&config.layouts[&argument.data], spec.shape(&argument.data)?);
        let mut buffer = Buffer::of(container, &shape, layout)?;
        match given.get(&argument.data) {
            Some(array) => buffer.pack(container, layout, array)?,
            // What a kernel forgets to write must not pass for a zero.
            None => buffer.as_mut_slice().fill(0xff),
        }
        buffers.push(buffer);
    }
    let pointers: Vec<*mut u8> = buffers.iter_mut().map(Buffer::as_mut_ptr).collect();
    let context = RunContext { seed: RUN.seed, step: RUN.step, dropout: RUN.dropout, pool, deadline: None };
    // SAFETY: one buffer for each argument, in the configuration's layouts.
    assert_eq!(unsafe { kernel.run(&pointers, &context) }?, Completion::Done);
    let mut results = Tensors::new();
    for (argument, buffer) in arguments.iter().zip(&buffers).filter(|(a, _)| a.access == Access::Write) {
        let container = &spec.containers[argument.data.as_str()];
        let array = buffer.unpack(container, &config.layouts[&argument.data], &spec.shape(&argument.data)?)?;
        results.insert(argument.data.clone(), array);
    }
    Ok(results)
}

/// Error of a sum of n products of rounded factors: n + 1 roundings, plus those of the functions around it (at most 16 in
/// these kernels), each relative to the largest value that occurs.
fn tolerance(spec: &KernelSpec, want: &ArrayD<f64>) -> f64 {
    let longest = spec.dims.values().product::<i64>().min(3 * 19 * 37) as f64;
    let largest = want.iter().fold(2.0f64, |m, v| m.max(v.abs()));
    sdfg::Dtype::F32.roundoff() * (longest.sqrt() * 2.0 + 16.0) * largest * largest
}

fn check(name: &str, spec: &KernelSpec, config: &KernelConfig, want: &Tensors, got: &Tensors) {
    for (data, got) in got {
        let (want, bound) = (&want[data], tolerance(spec, &want[data]));
        for (at, value) in got.indexed_iter() {
            let exact = want[&at];
            let same = (value - exact).abs() <= bound || value.is_nan() && exact.is_nan() || *value == exact;
            assert!(same, "{name} {data}{at:?} is {value}, the interpreter says {exact} (bound {bound:e}) under {config}");
            if data == "alpha" {
                assert_eq!(*value == 0.0, exact == 0.0, "{name}: the mask differs at {at:?} under {config}");
            }
        }
    }
}

/// A fixed spread of configurations of each space.
fn spread(space: &dyn Space, wanted: u64) -> impl Iterator<Item = KernelConfig> {
    let count = space.count();
    // A step with no small factor in common with the radices visits all of their digits.
    (0..wanted).map(move |n| space.config((n * 1_000_003 + n * n * 7919) % count))
}

fn each_case(sizes: common::Sizes, wanted: u64) -> Result<(), Failure> {
    let pools = [Pool::new(1)?, Pool::new(3)?];
    for (name, make) in CASES {
        let Case { program, unit } = make(sizes);
        let spec = KernelSpec::new(&program, &unit)?;
        let given = tensors(&spec)?;
        let mut want = given.clone();
        interpret_unit(&program, &unit, &mut want, &RUN)?;
        let space = MapSpace::new(&spec)?;
        for (n, config) in spread(&space, wanted).enumerate() {
            let got = run(&spec, &config, &given, &pools[n % 2])?;
            check(name, &spec, &config, &want, &got);
        }
    }
    Ok(())
}

#[test]
fn every_case_equals_the_interpreter_over_its_space() -> Result<(), Failure> {
    each_case(SIZES, 14)
}

#[test]
fn dims_of_size_one() -> Result<(), Failure> {
    each_case(&[("b", 1), ("h", 1), ("j", 5), ("k", 1), ("i", 1), ("u", 3)], 4)
}

#[test]
fn relayout_moves_every_element() -> Result<(), Failure> {
    let dims = [("a".to_string(), 5i64), ("b".to_string(), 33), ("c".to_string(), 18)];
    let names: Vec<String> = dims.iter().map(|(d, _)| d.clone()).collect();
    let container = sdfg::Container::new("x", &["a", "b", "c"], sdfg::Dtype::F32, sdfg::Role::Input);
    let shape = [5, 33, 18];
    let array = ArrayD::from_shape_vec(shape.to_vec(), random::tensor(1, "x", shape.iter().product()))?;
    let pool = Pool::new(2)?;
    for to in Layout::permutations(&names) {
        let from = Layout::of(&["c", "a", "b"]);
        let kernel = maps::relayout("x", container.dtype, &dims, &from, &to, &toolchain()?)?;
        let (mut source, mut target) = (Buffer::of(&container, &shape, &from)?, Buffer::of(&container, &shape, &to)?);
        source.pack(&container, &from, &array)?;
        let context = RunContext { seed: 0, step: 0, dropout: false, pool: &pool, deadline: None };
        // SAFETY: both buffers hold the container in its layout.
        unsafe { kernel.run(&[source.as_mut_ptr(), target.as_mut_ptr()], &context) }?;
        assert_eq!(target.unpack(&container, &to, &shape)?, array, "{to}");
    }
    Ok(())
}
