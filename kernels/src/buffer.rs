//! Storage of containers: aligned bytes, and the way between them and host arrays.

use crate::elements::ElementRows;
use crate::error::KernelError;
use ndarray::{ArrayD, IxDyn};
use rayon::prelude::*;
use sdfg::layout::BlockedStride;
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
pub struct AlignedBuffer {
    start: NonNull<u8>,
    memory: Memory,
    bytes: usize,
}

// SAFETY: a buffer owns its bytes; nothing in it belongs to a thread.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuffer {}

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

/// Zeroes bytes, many of them on all cores: most of the time goes to the system, which clears each page that is touched first.
///
/// # Safety
/// The bytes can be written, and nobody else reads or writes them.
unsafe fn zero(start: *mut u8, bytes: usize) {
    let piece = 4 * HUGE;
    if bytes < 2 * piece {
        // SAFETY: as promised by the caller.
        unsafe { start.write_bytes(0, bytes) };
        return;
    }
    let start = start.expose_provenance();
    (0..bytes.div_ceil(piece)).into_par_iter().for_each(|n| {
        let at = n * piece;
        // SAFETY: pieces of these bytes, of which no two overlap.
        unsafe { std::ptr::with_exposed_provenance_mut::<u8>(start + at).write_bytes(0, piece.min(bytes - at)) };
    });
}

impl AlignedBuffer {
    /// # Errors
    /// No memory.
    pub fn new(bytes: usize) -> Result<Self, KernelError> {
        let no_memory = || KernelError::Memory { bytes };
        let huge = bytes >= HUGE;
        // A spare line at the end: vector code may read, never write, up to one line beyond.
        let size = bytes.checked_add(LINE).ok_or_else(no_memory)?;
        // The rest beyond the last huge page becomes one too, unless that takes half as much memory in addition.
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
        unsafe { zero(start.as_ptr(), bytes) };
        // SAFETY: the spare line at the end.
        unsafe { start.as_ptr().add(bytes).write_bytes(SPARE, LINE) };
        Ok(AlignedBuffer { start, memory, bytes })
    }

    /// Room for a container of this shape in this layout.
    ///
    /// # Errors
    /// No memory; a layout of other dims.
    pub fn of(container: &Container, shape: &[usize], layout: &Layout) -> Result<Self, KernelError> {
        let elements = layout.extent(&container.dims, shape).ok_or_else(|| layout_error(container, layout))?;
        AlignedBuffer::new(container.dtype.bytes(elements as u64) as usize)
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
        let rows = ElementRows::new(array.shape(), &steps);
        let bytes = self.as_mut_slice();
        // SAFETY: `steps` has made sure that the layout fits; it gives every element a place of its own.
        unsafe {
            match container.dtype {
                Dtype::F64 => rows.store::<f64>(bytes, values),
                Dtype::F32 => rows.store::<f32>(bytes, values),
                Dtype::Bf16 => rows.store::<half::bf16>(bytes, values),
                Dtype::F16 => rows.store::<half::f16>(bytes, values),
                Dtype::I64 => rows.store::<i64>(bytes, values),
                Dtype::I32 => rows.store::<i32>(bytes, values),
                Dtype::I16 => rows.store::<i16>(bytes, values),
                Dtype::U8 => rows.store::<u8>(bytes, values),
                // Neighbours share a byte.
                Dtype::Bit => rows.each(values.len(), |n, at| {
                    let mask = 1u8 << (at % 8);
                    if values[n] != 0.0 { bytes[at / 8] |= mask } else { bytes[at / 8] &= !mask }
                }),
            }
        }
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
    /// As for [`AlignedBuffer::unpack`].
    pub fn unpack_from(&self, at: usize, container: &Container, layout: &Layout, shape: &[usize]) -> Result<ArrayD<f64>, KernelError> {
        let bytes = self.as_slice().get(at..).unwrap_or_default();
        let steps = steps(bytes.len(), container, layout, shape)?;
        let rows = ElementRows::new(shape, &steps);
        let mut values = vec![0.0; shape.iter().product()];
        // SAFETY: `steps` has made sure that the layout fits.
        unsafe {
            match container.dtype {
                Dtype::F64 => rows.load::<f64>(bytes, &mut values),
                Dtype::F32 => rows.load::<f32>(bytes, &mut values),
                Dtype::Bf16 => rows.load::<half::bf16>(bytes, &mut values),
                Dtype::F16 => rows.load::<half::f16>(bytes, &mut values),
                Dtype::I64 => rows.load::<i64>(bytes, &mut values),
                Dtype::I32 => rows.load::<i32>(bytes, &mut values),
                Dtype::I16 => rows.load::<i16>(bytes, &mut values),
                Dtype::U8 => rows.load::<u8>(bytes, &mut values),
                Dtype::Bit => rows.each(values.len(), |n, at| values[n] = f64::from(bytes[at / 8] >> (at % 8) & 1)),
            }
        }
        let misfit = |_| KernelError::Shape { data: container.name.clone(), expected: vec![], given: shape.to_vec() };
        ArrayD::from_shape_vec(IxDyn(shape), values).map_err(misfit)
    }
}

/// Where the elements of an array are, each in a number of bytes.
fn steps(bytes: usize, container: &Container, layout: &Layout, shape: &[usize]) -> Result<Vec<BlockedStride>, KernelError> {
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

impl Drop for AlignedBuffer {
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
    use sdfg::Role;

    /// Of every type, in layouts that turn, cut and pad, and of sizes on either side of what several cores share: each element lies
    /// where its layout says, and is found again.
    #[test]
    fn what_is_packed_lies_where_the_layout_says() -> Result<(), Box<dyn std::error::Error>> {
        let dims = ["a", "b", "c"].map(String::from);
        for (shape, dtype) in [[3, 4, 7], [40, 33, 51]].into_iter().flat_map(|shape| Dtype::ALL.map(|dtype| (shape, dtype))) {
            let container = Container::new("x", &["a", "b", "c"], dtype, Role::Input);
            // Values that every type has.
            let array =
                ArrayD::from_shape_fn(IxDyn(&shape), |i| ((i[0] * 5 + i[1] * 3 + i[2]) % if dtype == Dtype::Bit { 2 } else { 97 }) as f64);
            for text in ["a,b,c", "c,a,b", "b,a,c+8", "a,c,b,c%16", "c,a,b,a%2+1"] {
                let (layout, name) = (text.parse::<Layout>()?, format!("{text} of {shape:?} in {dtype}"));
                let mut buffer = AlignedBuffer::of(&container, &shape, &layout)?;
                buffer.pack(&container, &layout, &array)?;
                assert_eq!(buffer.unpack(&container, &layout, &shape)?, array, "{name}");
                let steps = layout.steps(&dims, &shape).ok_or("a layout of other dims")?;
                let width = dtype.bytes(1) as usize;
                for (index, value) in array.indexed_iter().step_by(11) {
                    let at: usize = steps.iter().enumerate().map(|(d, step)| step.offset(index[d])).sum();
                    let bytes = buffer.as_slice();
                    let found = match dtype {
                        Dtype::Bit => f64::from(bytes[at / 8] >> (at % 8) & 1),
                        Dtype::F32 => f64::from(f32::from_ne_bytes(bytes[at * width..][..4].try_into()?)),
                        Dtype::U8 => f64::from(bytes[at]),
                        Dtype::F64 => f64::from_ne_bytes(bytes[at * width..][..8].try_into()?),
                        _ => continue,
                    };
                    assert_eq!(found, *value, "{name} at {index:?}");
                }
            }
        }
        Ok(())
    }

    /// From one huge page on; the rest beyond the last is rounded up where that is little.
    #[test]
    fn large_buffers_are_made_of_huge_pages() -> Result<(), KernelError> {
        for (bytes, size) in [(HUGE - 1, HUGE - 1 + LINE), (HUGE, HUGE + LINE), (3 * HUGE / 2, 2 * HUGE), (4 * HUGE, 4 * HUGE + LINE)] {
            let buffer = AlignedBuffer::new(bytes)?;
            assert_eq!((buffer.len(), buffer.memory.size()), (bytes, size));
            assert!(bytes < HUGE || (buffer.as_ptr() as usize).is_multiple_of(HUGE));
            assert!(buffer.as_slice().iter().all(|b| *b == 0));
        }
        Ok(())
    }
}
