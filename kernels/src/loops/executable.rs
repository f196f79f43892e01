//! Runs a loop: for each time the kernels of its body, on the slices of that time.
//!
//! The launches of all times are packed into few dispatches. No barrier separates times where each worker reads only its own results of the
//! times before, as when all kernels of the body are divided along the batch. Operands that all times read are packed once.

use super::body::{self, Body};
use crate::c_form::{CForm, Filled, Unrolled, UnrolledAddress, UnrolledLaunch};
use crate::device::{Device, DeviceMemory};
use crate::error::KernelError;
use crate::executable::{Executable, MemberTimes};
use crate::in_place::{self, InPlace};
use crate::kernel::{ArgumentAccess, KernelSpec, unsupported};
use crate::packing::{self, ArgumentAddresses, ArgumentMemory, Packed};
use crate::pool::Working;
use crate::run_context::{Completion, RunContext};
use sdfg::affine::Affine;
use sdfg::config::KernelConfig;
use sdfg::{Container, Layout, Slice};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Every address in the loop's own memory is a multiple of this.
const LINE: usize = 64;

/// Where an argument of a kernel lies in an iteration.
#[derive(Clone, Debug, PartialEq)]
enum SlicedArgument {
    /// A whole argument of the loop.
    Whole(usize),
    /// In the loop's own memory.
    Own(usize),
    /// Slice number `by · time + from` of an argument of the loop, `bytes` bytes each; where that is none of its `count` slices, the offset
    /// `outside` in the loop's own memory.
    Slice { argument: usize, by: i64, from: i64, count: i64, bytes: usize, outside: Option<usize> },
    /// An argument that holds the value of a single time: the value that this time computes or, with `before`, that of the time before,
    /// which at first is at the offset `before` in the loop's own memory. Where it cannot be written in place, every other time is held at
    /// the offset `other`.
    State { argument: usize, other: Option<usize>, before: Option<usize> },
}

struct Launch {
    name: String,
    executable: Arc<dyn Executable>,
    places: Vec<SlicedArgument>,
    /// Bytes of each argument.
    bytes: Vec<usize>,
}

pub(super) struct LoopKernel {
    name: String,
    arguments: usize,
    trips: i64,
    reversed: bool,
    launches: Vec<Launch>,
    /// What only the body has, and slices that lie outside in time.
    own: Mutex<DeviceMemory>,
    own_bytes: usize,
    filled: Vec<Filled>,
    /// Kernels of the body that the caller does by itself before the workers begin what comes after them.
    before: Vec<usize>,
    source: Option<String>,
    /// How the launches of all times are packed, by the number of workers.
    packed: Mutex<BTreeMap<usize, Arc<Packed>>>,
}

/// The loop's own memory while it is laid out: containers, and slices of one value.
#[derive(Default)]
struct Room {
    bytes: usize,
    containers: BTreeMap<String, usize>,
    /// (value, container's name inside) → place.
    fills: Vec<(usize, Container, Layout, Vec<usize>, f64)>,
    /// Outer containers that hold one time, and where every other time lies if they are not written in place.
    states: BTreeMap<String, Option<usize>>,
}

impl Room {
    fn take(&mut self, bytes: usize) -> usize {
        let at = self.bytes;
        self.bytes += bytes.div_ceil(LINE) * LINE;
        at
    }

    /// The slice that has one value.
    fn filled(&mut self, container: &Container, layout: Layout, shape: Vec<usize>, bytes: usize, value: f64) -> usize {
        let known = self.fills.iter().find(|(_, c, l, s, v)| {
            c.dtype == container.dtype && *s == shape && c.dims == container.dims && *l == layout && v.to_bits() == value.to_bits()
        });
        if let Some((at, ..)) = known {
            return *at;
        }
        let at = self.take(bytes);
        self.fills.push((at, container.clone(), layout, shape, value));
        at
    }
}

impl LoopKernel {
    pub(super) fn new(body: &Body, config: &KernelConfig, device: &dyn Device) -> Result<Self, KernelError> {
        let mut room = Room::default();
        let mut launches = Vec::new();
        let configs = states(body, body.configs(config)?, device, &mut room)?;
        for (kernel, own) in body.kernels.iter().zip(configs) {
            let (mut places, mut sizes) = (Vec::new(), Vec::new());
            for argument in kernel.arguments() {
                places.push(place(body, config, kernel, &argument.data, &mut room)?);
                let container = kernel.containers.get(&argument.data);
                let layout = container.map(|c| body.inner_layout(config, c)).transpose()?.unwrap_or_default();
                sizes.push(container.map_or(Ok(0), |c| bytes(body, kernel, c, &layout))?);
            }
            launches.push(Launch { name: kernel.name.clone(), executable: device.compile(kernel, &own)?, places, bytes: sizes });
        }
        let mut own = device.memory(room.bytes.max(LINE))?;
        let mut filled = Vec::new();
        for (at, container, layout, shape, value) in &room.fills {
            fill(&mut own, *at, container, layout, shape, *value)?;
            let elements = layout.extent(&container.dims, shape).unwrap_or_default();
            filled.push(Filled { at: *at, elements, dtype: container.dtype, value: *value });
        }
        let sources: Vec<&str> = launches.iter().filter_map(|launch| launch.executable.source()).collect();
        Ok(LoopKernel {
            name: body.spec.name.clone(),
            arguments: body.spec.arguments().len(),
            trips: body.trips,
            reversed: body.repeat.reversed,
            source: (!sources.is_empty()).then(|| sources.join("\n\n")),
            launches,
            own_bytes: room.bytes.max(LINE),
            filled,
            before: body::before(&config.knobs),
            own: Mutex::new(own),
            packed: Mutex::default(),
        })
    }
}

/// Decides which containers that hold one time are written in place, and gives the others a second place. Returns the configurations under
/// which the kernels of the body do so.
fn states(body: &Body, mut configs: Vec<KernelConfig>, device: &dyn Device, room: &mut Room) -> Result<Vec<KernelConfig>, KernelError> {
    let mut in_place: Vec<Vec<InPlace>> = vec![vec![]; configs.len()];
    for (before, now) in body.states() {
        let touches = |data: &str| -> Vec<usize> {
            let touches = |kernel: &KernelSpec| kernel.arguments().iter().any(|a| a.data == data);
            (0..configs.len()).filter(|n| touches(&body.kernels[*n])).collect()
        };
        let writes = |n: &usize| body.kernels[*n].arguments().iter().any(|a| a.data == now && a.access == ArgumentAccess::Write);
        let (readers, writers) = (touches(before), touches(now).into_iter().filter(writes).collect::<Vec<_>>());
        let pair = InPlace { read: before.to_string(), written: now.to_string() };
        let legal = match writers[..] {
            [writer] if readers.iter().all(|reader| *reader < writer) => true,
            [writer] if readers.iter().all(|reader| *reader <= writer) => {
                let legal = device.in_place(&body.kernels[writer], &configs[writer]).contains(&pair);
                if legal {
                    in_place[writer].push(pair);
                }
                legal
            }
            _ => false,
        };
        let container = body.program.containers.get(now);
        let unknown = || KernelError::UnknownContainer { kernel: body.spec.name.clone(), data: now.to_string() };
        let container = container.ok_or_else(unknown)?;
        let other = match (legal, writers.first()) {
            (false, Some(writer)) => {
                let layout = configs[*writer].layouts.get(now).cloned().unwrap_or_else(|| Layout::row_major(container));
                Some(room.take(bytes(body, &body.kernels[*writer], container, &layout)?))
            }
            _ => None,
        };
        room.states.insert(now.to_string(), other);
    }
    for (config, pairs) in configs.iter_mut().zip(&in_place) {
        *config = in_place::with(config, pairs);
    }
    Ok(configs)
}

/// Where the arguments of launches lie: the kernels of the body in the first time, then those of the next one.
struct LoopAddresses<'a> {
    kernel: &'a LoopKernel,
    arguments: &'a [*mut u8],
    base: *mut u8,
}
// SAFETY: workers write parts that their shares give them.
unsafe impl Sync for LoopAddresses<'_> {}

impl ArgumentAddresses for LoopAddresses<'_> {
    fn of(&self, launch: usize, into: &mut Vec<*mut u8>) {
        let each = self.kernel.launches.len();
        // Slices outside were refused when launches were packed.
        let _ = self.kernel.addresses((launch / each) as i64, &self.kernel.launches[launch % each], self.arguments, self.base, into);
    }
}

impl LoopKernel {
    /// The time of an iteration.
    fn time(&self, iteration: i64) -> i64 {
        if self.reversed { self.trips - 1 - iteration } else { iteration }
    }

    /// The slice of an argument at an iteration, or the place in the loop's own memory that stands for one outside.
    fn slice(&self, iteration: i64, (by, from, count): (i64, i64, i64), outside: Option<usize>) -> Result<Result<i64, usize>, KernelError> {
        let time = self.time(iteration);
        match (by * time + from, outside) {
            (at, _) if (0..count).contains(&at) => Ok(Ok(at)),
            (_, Some(outside)) => Ok(Err(outside)),
            (at, None) => {
                let what = format!("at {time} it reads slice {at} of {count}, and nothing was given for what lies outside");
                Err(KernelError::Unsupported { kernel: self.name.clone(), what })
            }
        }
    }

    /// Where a container that holds one time lies at an iteration: an argument, or a place in the loop's own memory.
    fn state(&self, iteration: i64, argument: usize, other: Option<usize>, before: Option<usize>) -> Result<usize, usize> {
        // The last time is left in the argument.
        let of = |n: i64| match other {
            Some(other) if (self.trips - 1 - n) % 2 != 0 => Err(other),
            _ => Ok(argument),
        };
        match before {
            Some(first) if iteration == 0 => Err(first),
            Some(_) => of(iteration - 1),
            None => of(iteration),
        }
    }

    /// The addresses of a launch's arguments. They may belong to another device, so they are no dereferenceable pointers here.
    fn addresses(
        &self,
        iteration: i64,
        launch: &Launch,
        arguments: &[*mut u8],
        base: *mut u8,
        into: &mut Vec<*mut u8>,
    ) -> Result<(), KernelError> {
        into.clear();
        for place in &launch.places {
            into.push(match place {
                SlicedArgument::Whole(argument) => arguments[*argument],
                SlicedArgument::Own(at) => base.wrapping_add(*at),
                SlicedArgument::State { argument, other, before } => match self.state(iteration, *argument, *other, *before) {
                    Ok(argument) => arguments[argument],
                    Err(own) => base.wrapping_add(own),
                },
                SlicedArgument::Slice { argument, by, from, count, bytes, outside } => {
                    match self.slice(iteration, (*by, *from, *count), *outside)? {
                        Ok(at) => arguments[*argument].wrapping_add(at as usize * bytes),
                        Err(outside) => base.wrapping_add(outside),
                    }
                }
            });
        }
        Ok(())
    }

    /// All launches of all times, packed for a number of workers.
    fn packed(&self, kernels: &[&dyn Executable], workers: usize) -> Result<Arc<Packed>, KernelError> {
        let mut known = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(packed) = known.get(&workers) {
            return Ok(packed.clone());
        }
        // Slices are memory of their own: numbers are given as they come. An argument that is read both whole and in slices is one memory.
        let places = || self.launches.iter().flat_map(|l| &l.places);
        let is_whole = |argument: usize| places().any(|p| *p == SlicedArgument::Whole(argument));
        let mut numbers: BTreeMap<(usize, i64), usize> = BTreeMap::new();
        let mut launches = Vec::new();
        for iteration in 0..self.trips {
            for (kernel, launch) in self.launches.iter().enumerate() {
                let mut arguments = Vec::new();
                for (place, size) in launch.places.iter().zip(&launch.bytes) {
                    let ((memory, part), bytes) = match place {
                        SlicedArgument::Whole(argument) => ((*argument, -1), 0..*size),
                        SlicedArgument::Own(at) => ((self.arguments, *at as i64), 0..*size),
                        SlicedArgument::State { argument, other, before } => match self.state(iteration, *argument, *other, *before) {
                            Ok(argument) => ((argument, -1), 0..*size),
                            Err(own) => ((self.arguments, own as i64), 0..*size),
                        },
                        SlicedArgument::Slice { argument, by, from, count, bytes, outside } => {
                            match self.slice(iteration, (*by, *from, *count), *outside)? {
                                Ok(at) if is_whole(*argument) => ((*argument, -1), at as usize * bytes..(at as usize + 1) * bytes),
                                Ok(at) => ((*argument, at), 0..*bytes),
                                Err(outside) => ((self.arguments, outside as i64), 0..*size),
                            }
                        }
                    };
                    let next = numbers.len();
                    arguments.push(ArgumentMemory { memory: *numbers.entry((memory, part)).or_insert(next), bytes });
                }
                launches.push(packing::PackedLaunch { kernel, arguments });
            }
        }
        let packed = Arc::new(match self.before.as_slice() {
            [] => Packed::new(kernels, &launches, workers),
            before => Packed::after(kernels, &launches, workers, before),
        });
        known.insert(workers, packed.clone());
        Ok(packed)
    }
}

/// Bytes of a container of the body in its layout.
fn bytes(body: &Body, kernel: &KernelSpec, container: &Container, layout: &Layout) -> Result<usize, KernelError> {
    let shape = kernel.shape(&container.name)?;
    let elements = layout.extent(&container.dims, &shape);
    let misfit = || unsupported(&body.spec, format!("the layout {layout} does not fit `{}`", container.name));
    Ok(container.dtype.bytes(elements.ok_or_else(misfit)? as u64) as usize)
}

fn place(body: &Body, config: &KernelConfig, kernel: &KernelSpec, data: &str, room: &mut Room) -> Result<SlicedArgument, KernelError> {
    let container =
        kernel.containers.get(data).ok_or_else(|| KernelError::UnknownContainer { kernel: kernel.name.clone(), data: data.to_string() })?;
    let layout = body.inner_layout(config, container)?;
    let bytes = bytes(body, kernel, container, &layout)?;
    let argument = body.outer(data).and_then(|outer| body.spec.arguments().iter().position(|a| a.data == outer));
    let Some(argument) = argument else {
        let at = match room.containers.get(data) {
            Some(at) => *at,
            None => {
                let at = room.take(bytes);
                room.containers.insert(data.to_string(), at);
                at
            }
        };
        return Ok(SlicedArgument::Own(at));
    };
    if let Some(other) = body.outer(data).and_then(|outer| room.states.get(outer)).copied() {
        let fill = body.slice(data).filter(|slice| slice.is_state()).and_then(|slice| slice.fill);
        let before = match fill {
            Some(value) => Some(room.filled(container, layout, kernel.shape(data)?, bytes, value.0)),
            None => None,
        };
        return Ok(SlicedArgument::State { argument, other, before });
    }
    let Some(Slice { data: outer, at: Some((axis, at)), fill }) = body.slice(data) else { return Ok(SlicedArgument::Whole(argument)) };
    let wrong = || unsupported(&body.spec, format!("`{outer}` is read at {at}, which is no multiple of the time plus a number"));
    let form = Affine::of(at, &|name| name == body.repeat.index).ok_or_else(wrong)?;
    let from = form.offset.eval(&body.spec.sizes).map_err(|source| KernelError::Size { kernel: body.spec.name.clone(), source })?;
    let count = body.spec.shape(outer)?.get(*axis).copied().unwrap_or(0) as i64;
    let outside = match fill {
        Some(value) => {
            let shape = kernel.shape(data)?;
            Some(room.filled(container, layout, shape, bytes, value.0))
        }
        None => None,
    };
    Ok(SlicedArgument::Slice { argument, by: form.coefficient(&body.repeat.index), from, count, bytes, outside })
}

/// Gives a slice in the loop's own memory one value.
fn fill(own: &mut DeviceMemory, at: usize, container: &Container, layout: &Layout, shape: &[usize], value: f64) -> Result<(), KernelError> {
    let mut slice = crate::AlignedBuffer::of(container, shape, layout)?;
    slice.pack(container, layout, &ndarray::ArrayD::from_elem(ndarray::IxDyn(shape), value))?;
    match own {
        DeviceMemory::Host(buffer) => {
            let bytes = slice.as_slice();
            buffer.as_mut_slice()[at..at + bytes.len()].copy_from_slice(bytes);
            Ok(())
        }
        DeviceMemory::Own(memory) => memory.write(at, slice.as_slice()),
    }
}

impl Unrolled for LoopKernel {
    fn kernels(&self) -> Vec<&dyn Executable> {
        self.launches.iter().map(|launch| &*launch.executable).collect()
    }

    fn launches(&self) -> Result<Vec<UnrolledLaunch>, KernelError> {
        let mut found = Vec::new();
        for iteration in 0..self.trips {
            for (kernel, launch) in self.launches.iter().enumerate() {
                let address = |place: &SlicedArgument| {
                    Ok(match place {
                        SlicedArgument::Whole(argument) => UnrolledAddress::Argument(*argument, 0),
                        SlicedArgument::Own(at) => UnrolledAddress::Own(*at),
                        SlicedArgument::State { argument, other, before } => match self.state(iteration, *argument, *other, *before) {
                            Ok(argument) => UnrolledAddress::Argument(argument, 0),
                            Err(own) => UnrolledAddress::Own(own),
                        },
                        SlicedArgument::Slice { argument, by, from, count, bytes, outside } => {
                            match self.slice(iteration, (*by, *from, *count), *outside)? {
                                Ok(at) => UnrolledAddress::Argument(*argument, at as usize * bytes),
                                Err(outside) => UnrolledAddress::Own(outside),
                            }
                        }
                    })
                };
                let arguments = launch.places.iter().map(address).collect::<Result<_, KernelError>>()?;
                found.push(UnrolledLaunch { kernel, arguments });
            }
        }
        Ok(found)
    }

    fn packed(&self, workers: usize) -> Result<Option<Arc<Packed>>, KernelError> {
        let kernels = self.kernels();
        let all = kernels.iter().all(|kernel| kernel.phases().is_some());
        all.then(|| LoopKernel::packed(self, &kernels, workers)).transpose()
    }

    fn own(&self) -> (usize, &[Filled]) {
        (self.own_bytes, &self.filled)
    }
}

impl Executable for LoopKernel {
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let base = own.address();
        let _held = context.pool.hold();
        let kernels: Vec<&dyn Executable> = self.launches.iter().map(|launch| &*launch.executable).collect();
        if kernels.iter().all(|kernel| kernel.phases().is_some()) {
            let packed = self.packed(&kernels, context.pool.workers())?;
            let addresses = LoopAddresses { kernel: self, arguments, base };
            // SAFETY: each pointer is that of a slice, a whole argument or the loop's own memory, as large as the kernel's container in its
            // layout.
            return unsafe { packed.run(&kernels, &addresses, context, &mut |_| {}) };
        }
        let mut pointers: Vec<*mut u8> = Vec::new();
        for n in 0..self.trips {
            for launch in &self.launches {
                self.addresses(n, launch, arguments, base, &mut pointers)?;
                // SAFETY: as above; what an iteration writes overlaps with nothing that it reads.
                if unsafe { launch.executable.run(&pointers, context)? } == Completion::DeadlineExceeded {
                    return Ok(Completion::DeadlineExceeded);
                }
            }
        }
        Ok(Completion::Done)
    }

    unsafe fn run_members(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Option<Vec<MemberTimes>>, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let base = own.address();
        let _held = context.pool.hold();
        let mut times: Vec<Vec<MemberTimes>> = vec![vec![]; self.launches.len()];
        let mut pointers: Vec<*mut u8> = Vec::new();
        for n in 0..self.trips {
            for (launch, times) in self.launches.iter().zip(&mut times) {
                self.addresses(n, launch, arguments, base, &mut pointers)?;
                let (before, began) = (context.pool.dispatches(), Instant::now());
                // SAFETY: as for `run`.
                let found = match unsafe { launch.executable.run_members(&pointers, context)? } {
                    // The kernels of a loop within this one.
                    Some(inner) => inner,
                    None => {
                        // SAFETY: as for `run`.
                        unsafe { launch.executable.run(&pointers, context)? };
                        // What one worker does alone is a dispatch that needs no other one.
                        let dispatches = (context.pool.dispatches() - before).max(1);
                        let ms = began.elapsed().as_secs_f64() * 1e3;
                        let on_chip = launch.executable.on_chip();
                        vec![MemberTimes { name: launch.name.clone(), runs: 1, dispatches, ms, on_chip }]
                    }
                };
                if times.is_empty() {
                    *times = found;
                } else {
                    for (sum, more) in times.iter_mut().zip(found) {
                        (sum.runs, sum.dispatches, sum.ms) = (sum.runs + more.runs, sum.dispatches + more.dispatches, sum.ms + more.ms);
                    }
                }
            }
        }
        Ok(Some(times.concat()))
    }

    fn missing_row(&self) -> Option<KernelError> {
        self.launches.iter().find_map(|launch| launch.executable.missing_row())
    }

    fn working(&self) -> Working {
        self.launches.iter().map(|launch| launch.executable.working()).fold(Working::default(), Working::max)
    }

    fn as_c(&self) -> Option<CForm<'_>> {
        Some(CForm::Loop(self))
    }

    fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }

    fn library(&self) -> Option<&str> {
        self.launches.iter().find_map(|launch| launch.executable.library())
    }
}
