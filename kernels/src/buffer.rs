//! Storage of containers: aligned bytes, and the way between them and host arrays.

use crate::error::KernelError;
use ndarray::{ArrayD, IxDyn};
use rayon::prelude::*;
use sdfg::layout::Step;
use sdfg::{Container, Dtype, Layout};
use std::alloc::{Layout as Memory, alloc, dealloc};
use std::ptr::NonNull;

/// Widest vector and cache line.
const LINE: usize = 64;
/// What the spare line holds: what was written there is found when the buffer is let go.
const SPARE: u8 = 0xa5;
/// Huge page: buffers that are at least as large start on one, so that the system can back them with huge pages. Rows and columns
/// of a product touch more small pages than a processor remembers.
pub const HUGE: usize = 2 << 20;

/// Zeroed bytes, aligned to a cache line, large ones to a huge page.
#[derive(Debug)]
pub struct Buffer {
    start: NonNull<u8>,
    memory: Memory,
    bytes: usize,
}

// SAFETY: a buffer owns its bytes; nothing in it belongs to a thread.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

#[cfg(target_os = "linux")]
fn advise_huge_pages(start: *mut u8, bytes: usize) {
    unsafe extern "C" {
        fn madvise(address: *mut std::ffi::c_void, length: usize, advice: std::ffi::c_int) -> std::ffi::c_int;
    }
    const MADV_HUGEPAGE: std::ffi::c_int = 14;
    // SAFETY: the range is ours, and the advice changes only how it is backed. A refusal costs speed, nothing else.
    unsafe { madvise(start.cast(), bytes, MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn advise_huge_pages(_: *mut u8, _: usize) {}

impl Buffer {
    /// # Errors
    /// No memory.
    pub fn new(bytes: usize) -> Result<Self, KernelError> {
        let no_memory = || KernelError::Memory { bytes };
        let huge = bytes >= HUGE;
        // A spare line at the end: vector code may read, never write, up to one line beyond.
        let size = bytes.checked_add(LINE).ok_or_else(no_memory)?;
        // What is left beyond the last huge page becomes one too, unless that takes half as much memory again.
        let whole = bytes.checked_next_multiple_of(HUGE).filter(|whole| huge && *whole >= size && whole - bytes <= bytes / 2);
        let size = whole.unwrap_or(size);
        let memory = Memory::from_size_align(size, if huge { HUGE } else { LINE }).map_err(|_| no_memory())?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc(memory) }).ok_or_else(no_memory)?;
        if huge {
            advise_huge_pages(start.as_ptr(), size);
        }
        // Zeroed only now: the first touch decides how a page is backed.
        // SAFETY: just allocated with this size.
        unsafe { start.as_ptr().write_bytes(0, bytes) };
        // SAFETY: the spare line at the end.
        unsafe { start.as_ptr().add(bytes).write_bytes(SPARE, LINE) };
        Ok(Buffer { start, memory, bytes })
    }

    /// Room for a container of this shape in this layout.
    ///
    /// # Errors
    /// No memory; a layout of other dims.
    pub fn of(container: &Container, shape: &[usize], layout: &Layout) -> Result<Self, KernelError> {
        let elements = layout.extent(&container.dims, shape).ok_or_else(|| layout_error(container, layout))?;
        Buffer::new(container.dtype.bytes(elements as u64) as usize)
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Throws the lines of its first bytes out of the caches of all cores; false on processors where Memlet does not know how.
    pub fn flush(&self, bytes: usize) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_mm_clflush, _mm_mfence};
            for line in (0..self.bytes.min(bytes)).step_by(LINE) {
                // SAFETY: the address lies within the allocation; flushing writes back and changes no byte.
                unsafe { _mm_clflush(self.start.as_ptr().add(line)) };
            }
            // SAFETY: orders the flushes before what follows.
            unsafe { _mm_mfence() };
        }
        cfg!(target_arch = "x86_64")
    }

    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: allocated with at least this size, and initialised with zeros.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the buffer is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Writes an array (axes in the container's order of dims) in the container's element type and the given layout.
    ///
    /// # Errors
    /// An array of another size; a layout of other dims.
    pub fn pack(&mut self, container: &Container, layout: &Layout, array: &ArrayD<f64>) -> Result<(), KernelError> {
        let steps = steps(self.bytes, container, layout, array.shape())?;
        let values = array.as_standard_layout();
        let values = values.as_slice().unwrap_or_default();
        let rows = Rows::new(array.shape(), &steps);
        let (dtype, bytes) = (container.dtype, self.as_mut_slice());
        if dtype == Dtype::Bit || values.len() < PARALLEL {
            for (n, row) in values.chunks(rows.long).enumerate() {
                rows.positions(n).zip(row).for_each(|(at, value)| store(dtype, bytes, at, *value));
            }
            return Ok(());
        }
        let (start, width) = (Shared(bytes.as_mut_ptr()), dtype.bytes(1) as usize);
        values.par_chunks(rows.long).enumerate().for_each(|(n, row)| {
            for (at, value) in rows.positions(n).zip(row) {
                // SAFETY: elements have places of their own within the bytes, as `steps` has made sure, and nobody else has the buffer.
                store(dtype, unsafe { std::slice::from_raw_parts_mut(start.at(at * width), width) }, 0, *value);
            }
        });
        Ok(())
    }

    /// The array of this shape (axes in the container's order of dims) that the buffer holds.
    ///
    /// # Errors
    /// A shape of another size; a layout of other dims.
    pub fn unpack(&self, container: &Container, layout: &Layout, shape: &[usize]) -> Result<ArrayD<f64>, KernelError> {
        self.unpack_from(0, container, layout, shape)
    }

    /// The array that it holds from a byte on.
    ///
    /// # Errors
    /// As for [`Buffer::unpack`].
    pub fn unpack_from(&self, at: usize, container: &Container, layout: &Layout, shape: &[usize]) -> Result<ArrayD<f64>, KernelError> {
        let bytes = self.as_slice().get(at..).unwrap_or_default();
        let steps = steps(bytes.len(), container, layout, shape)?;
        let rows = Rows::new(shape, &steps);
        let mut values = vec![0.0; shape.iter().product()];
        let fill = |(n, row): (usize, &mut [f64])| {
            rows.positions(n).zip(row).for_each(|(at, value)| *value = load(container.dtype, bytes, at));
        };
        match values.len() < PARALLEL {
            true => values.chunks_mut(rows.long).enumerate().for_each(fill),
            false => values.par_chunks_mut(rows.long).enumerate().for_each(fill),
        }
        let misfit = |_| KernelError::Shape { data: container.name.clone(), expected: vec![], given: shape.to_vec() };
        ArrayD::from_shape_vec(IxDyn(shape), values).map_err(misfit)
    }
}

/// Where the elements of an array lie that so many bytes hold.
fn steps(bytes: usize, container: &Container, layout: &Layout, shape: &[usize]) -> Result<Vec<Step>, KernelError> {
    let steps = layout.steps(&container.dims, shape).ok_or_else(|| layout_error(container, layout))?;
    let elements = layout.extent(&container.dims, shape).unwrap_or(usize::MAX);
    if container.dtype.bytes(elements as u64) as usize > bytes {
        let held = vec![bytes * 8 / container.dtype.bits() as usize];
        return Err(KernelError::Shape { data: container.name.clone(), expected: held, given: shape.to_vec() });
    }
    Ok(steps)
}

fn layout_error(container: &Container, layout: &Layout) -> KernelError {
    KernelError::Layout { kernel: "pack".into(), data: container.name.clone(), layout: layout.to_string(), dims: container.dims.clone() }
}

/// Elements from which on all cores go over an array.
const PARALLEL: usize = 1 << 16;

/// The runs of an array along its last axis, and where their elements lie.
struct Rows<'a> {
    /// Extents and steps of the axes before the last.
    outer: Vec<(usize, Step)>,
    last: Option<&'a Step>,
    /// Elements of a run; at least 1.
    long: usize,
}

impl<'a> Rows<'a> {
    fn new(shape: &[usize], steps: &'a [Step]) -> Self {
        let outer = shape.iter().copied().zip(steps.iter().copied()).take(shape.len().saturating_sub(1)).collect();
        Rows { outer, last: steps.last(), long: shape.last().copied().unwrap_or(1).max(1) }
    }

    /// Places of the elements of run `n`.
    fn positions(&self, mut n: usize) -> impl Iterator<Item = usize> {
        let mut first = 0;
        for (extent, step) in self.outer.iter().rev() {
            first += step.offset(n % (*extent).max(1));
            n /= (*extent).max(1);
        }
        (0..self.long).map(move |i| first + self.last.map_or(0, |step| step.offset(i)))
    }
}

/// The beginning of bytes that several threads write, each its own.
struct Shared(*mut u8);

// SAFETY: whoever writes through it writes what nobody else does.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, byte: usize) -> *mut u8 {
        self.0.wrapping_add(byte)
    }
}

fn store(dtype: Dtype, bytes: &mut [u8], at: usize, value: f64) {
    macro_rules! put {
        ($value:expr) => {{
            let value = $value.to_ne_bytes();
            bytes[at * value.len()..][..value.len()].copy_from_slice(&value);
        }};
    }
    match dtype {
        Dtype::F64 => put!(value),
        Dtype::F32 => put!(value as f32),
        Dtype::Bf16 => put!(half::bf16::from_f64(value)),
        Dtype::F16 => put!(half::f16::from_f64(value)),
        Dtype::I64 => put!(value as i64),
        Dtype::I32 => put!(value as i32),
        Dtype::I16 => put!(value as i16),
        Dtype::U8 => put!(value as u8),
        Dtype::Bit => {
            let mask = 1u8 << (at % 8);
            if value != 0.0 { bytes[at / 8] |= mask } else { bytes[at / 8] &= !mask }
        }
    }
}

fn load(dtype: Dtype, bytes: &[u8], at: usize) -> f64 {
    macro_rules! get {
        ($type:ty) => {{
            let mut value = [0; size_of::<$type>()];
            value.copy_from_slice(&bytes[at * size_of::<$type>()..][..size_of::<$type>()]);
            <$type>::from_ne_bytes(value)
        }};
    }
    match dtype {
        Dtype::F64 => get!(f64),
        Dtype::F32 => f64::from(get!(f32)),
        Dtype::Bf16 => get!(half::bf16).to_f64(),
        Dtype::F16 => get!(half::f16).to_f64(),
        Dtype::I64 => get!(i64) as f64,
        Dtype::I32 => f64::from(get!(i32)),
        Dtype::I16 => f64::from(get!(i16)),
        Dtype::U8 => f64::from(get!(u8)),
        Dtype::Bit => f64::from(bytes[at / 8] >> (at % 8) & 1),
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the spare line, initialised by `new`.
        let spare = unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(self.bytes), LINE) };
        assert!(std::thread::panicking() || spare.iter().all(|b| *b == SPARE), "generated code wrote beyond the end of a buffer");
        // SAFETY: allocated by `new` with this very size and alignment.
        unsafe { dealloc(self.start.as_ptr(), self.memory) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From one huge page on; what is left beyond the last is rounded up where that is little.
    #[test]
    fn large_buffers_are_made_of_huge_pages() -> Result<(), KernelError> {
        for (bytes, size) in [(HUGE - 1, HUGE - 1 + LINE), (HUGE, HUGE + LINE), (3 * HUGE / 2, 2 * HUGE), (4 * HUGE, 4 * HUGE + LINE)] {
            let buffer = Buffer::new(bytes)?;
            assert_eq!((buffer.len(), buffer.memory.size()), (bytes, size));
            assert!(bytes < HUGE || (buffer.as_ptr() as usize).is_multiple_of(HUGE));
            assert!(buffer.as_slice().iter().all(|b| *b == 0));
        }
        Ok(())
    }
}
