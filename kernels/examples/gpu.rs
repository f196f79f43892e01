//! Generated kernels and products of cuBLASLt on GPU 0: correct against the interpreter first, then timed at BERT-large's sizes.
//! Run in release mode. Has not been run on hardware yet.

#[path = "../tests/common/mod.rs"]
mod cases;

use kernels::contraction::cublaslt::{Batching, CublasLt, Description, Form};
use kernels::contraction::{Call, Loop, Types};
use kernels::device::cuda::{Context, CudaKernel, CudaRun, Memory, Nvrtc};
use kernels::maps::{CudaSpace, cuda_source};
use kernels::{Access, Buffer, KernelSpec, Space};
use ndarray::ArrayD;
use sdfg::config::KernelConfig;
use sdfg::interpret::{Run, Tensors, interpret_unit};
use sdfg::tolerance::{compare, unit_tolerance};
use sdfg::{Dtype, Layout, random};
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

const SMALL: cases::Sizes = &[("b", 2), ("h", 2), ("j", 7), ("k", 37), ("i", 21), ("u", 70)];
const LARGE: cases::Sizes = &[("b", 8), ("h", 16), ("j", 512), ("k", 512), ("i", 1024), ("u", 4096)];
const RUN: Run = Run { seed: 11, step: 5, dropout: true };
const CUDA_RUN: CudaRun = CudaRun { seed: RUN.seed, step: RUN.step, dropout: RUN.dropout };
/// Configurations of each case that are checked.
const CHECKED: u64 = 20;
const REPEATS: usize = 20;
const WORKSPACE: usize = 32 << 20;

struct Gpu {
    context: Arc<Context>,
    nvrtc: Nvrtc,
}

impl Gpu {
    /// Median milliseconds of `work` on the stream, after one run that warms up; the data stay in the cache if they fit it.
    fn milliseconds(&self, mut work: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
        let mut times = Vec::new();
        for _ in 0..=REPEATS {
            let mut outcome = Ok(());
            times.push(self.context.milliseconds(|| {
                outcome = work();
                Ok(())
            })?);
            outcome?;
        }
        times.remove(0);
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// The worst error of a case at small sizes in units of what is allowed.
    fn check(&self, make: cases::Make, dtype: Dtype) -> Result<f64, Failure> {
        let cases::Case { mut program, unit } = make(SMALL);
        program.containers.values_mut().for_each(|c| c.dtype = dtype);
        let spec = KernelSpec::new(&program, &unit)?;
        let mut given = Tensors::new();
        for argument in spec.arguments().iter().filter(|a| a.access == Access::Read) {
            let shape = spec.shape(&argument.data)?;
            let values = random::tensor(3, &argument.data, shape.iter().product());
            given.insert(argument.data.clone(), ArrayD::from_shape_vec(shape, values)?);
        }
        let mut want = given.clone();
        interpret_unit(&program, &unit, &mut want, &RUN)?;
        let (tolerances, space) = (unit_tolerance(&program, &unit)?, CudaSpace::new(&spec)?);
        let mut worst = 0.0f64;
        for n in 0..CHECKED {
            let config = space.config((n * 1_000_003 + n * n * 7919) % space.count());
            let kernel = CudaKernel::new(&spec.name, cuda_source(&spec, &config)?, spec.arguments().len(), &self.context, &self.nvrtc)?;
            let (mut host, mut memory) = (Vec::new(), Vec::new());
            for argument in spec.arguments() {
                let container = &spec.containers[&argument.data];
                let layout = config.layouts.get(&argument.data).cloned().unwrap_or_else(|| Layout::natural(container));
                let mut buffer = Buffer::of(container, &spec.shape(&argument.data)?, &layout)?;
                match given.get(&argument.data) {
                    Some(array) => buffer.pack(container, &layout, array)?,
                    None => buffer.as_mut_slice().fill(0xff),
                }
                let mut on_gpu = self.context.memory(buffer.len())?;
                on_gpu.write(buffer.as_slice())?;
                host.push((buffer, layout));
                memory.push(on_gpu);
            }
            let addresses: Vec<u64> = memory.iter().map(Memory::address).collect();
            // SAFETY: one container for each argument, in the configuration's layouts; all live until they are read.
            unsafe { kernel.launch(&addresses, &CUDA_RUN) }?;
            for ((argument, (buffer, layout)), memory) in spec.arguments().iter().zip(&mut host).zip(&memory) {
                if argument.access == Access::Write {
                    memory.read(buffer.as_mut_slice())?;
                    let got = buffer.unpack(&spec.containers[&argument.data], layout, &spec.shape(&argument.data)?)?;
                    let found = compare(&got, &want[&argument.data], 1.0, &tolerances[&argument.data]).ratio;
                    worst = if found.is_nan() { f64::INFINITY } else { worst.max(found) };
                }
            }
        }
        Ok(worst)
    }

    /// GB/s of a case with default knobs: every argument once.
    fn bandwidth(&self, make: cases::Make, dtype: Dtype) -> Result<f64, Failure> {
        let cases::Case { mut program, unit } = make(LARGE);
        program.containers.values_mut().for_each(|c| c.dtype = dtype);
        let spec = KernelSpec::new(&program, &unit)?;
        let config = KernelConfig { knobs: sdfg::config::Knobs::default().with("width", 16 / dtype.bytes(1)), ..KernelConfig::default() };
        let kernel = CudaKernel::new(&spec.name, cuda_source(&spec, &config)?, spec.arguments().len(), &self.context, &self.nvrtc)?;
        let (mut memory, mut bytes) = (Vec::new(), 0);
        for argument in spec.arguments() {
            let size = dtype.bytes(spec.shape(&argument.data)?.iter().product::<usize>() as u64) as usize;
            let mut on_gpu = self.context.memory(size)?;
            on_gpu.write(&vec![0; size])?;
            memory.push(on_gpu);
            bytes += size;
        }
        let addresses: Vec<u64> = memory.iter().map(Memory::address).collect();
        // SAFETY: one container for each argument in its natural layout.
        let ms = self.milliseconds(|| Ok(unsafe { kernel.launch(&addresses, &CUDA_RUN) }?))?;
        Ok(bytes as f64 / ms / 1e6)
    }

    /// TFLOP/s of the library's first choice and of its best algorithm, and how many it has.
    fn product(&self, library: &Arc<CublasLt>, [m, n, k]: [usize; 3], dtype: Dtype) -> Result<(f64, f64, usize), Failure> {
        let walk = |extent, a, b, c| Loop { extent, strides: [a, b, c] };
        let call = Call { m: walk(m, 1, 0, 1), n: walk(n, 0, k, m), k: walk(k, m, 1, 0), batch: vec![], depth: vec![] };
        let description = Description::new(&call, [0; 3], 1.0, Form::Columns, Batching::Strided)?;
        let matmul = library.matmul(&description, Types { factor: dtype, out: dtype }, false)?;
        let mut memory = Vec::new();
        for elements in [m * k, k * n, m * n] {
            let size = dtype.bytes(elements as u64) as usize;
            let mut on_gpu = self.context.memory(size)?;
            on_gpu.write(&vec![0; size])?;
            memory.push(on_gpu);
        }
        let addresses = [memory[0].address(), memory[1].address(), memory[2].address()];
        let mut rates = Vec::new();
        for algorithm in matmul.algorithms()? {
            // SAFETY: three matrices of these sizes, which live until they have been waited for.
            let ms = self.milliseconds(|| Ok(unsafe { matmul.launch(addresses, &algorithm) }?))?;
            rates.push(description.flop() / ms / 1e9);
        }
        let first = *rates.first().ok_or("cuBLASLt offers no algorithm")?;
        Ok((first, rates.iter().copied().fold(0.0, f64::max), rates.len()))
    }
}

fn main() -> Result<(), Failure> {
    let gpu = Gpu { context: Context::new(0)?, nvrtc: Nvrtc::find()? };
    println!("{}, NVRTC {:?}", gpu.context.gpu.name, gpu.nvrtc.version);
    println!("\n{:20} {:5} {:>28} {:>10}", "kernel", "type", "worst error / tolerance", "GB/s");
    let mut wrong = false;
    for (name, make) in cases::CASES {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let ratio = gpu.check(make, dtype)?;
            wrong |= ratio > 1.0;
            println!("{name:20} {dtype:5} {ratio:28.3} {:10.0}", gpu.bandwidth(make, dtype)?);
        }
    }
    let library = Arc::new(CublasLt::new(&gpu.context, WORKSPACE)?);
    println!("\n{:20} {:>14} {:>14} {:>11}", "bf16 m×n×k", "first TFLOP/s", "best TFLOP/s", "algorithms");
    for sizes in [[4096, 3072, 1024], [4096, 1024, 1024], [4096, 4096, 1024], [4096, 1024, 4096]] {
        let (first, best, count) = gpu.product(&library, sizes, Dtype::Bf16)?;
        println!("{:20} {first:14.1} {best:14.1} {count:11}", format!("{}×{}×{}", sizes[0], sizes[1], sizes[2]));
    }
    if wrong { Err("a kernel is wrong".into()) } else { Ok(()) }
}
