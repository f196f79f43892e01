//! Stores around the caches, for results that would not stay there until somebody reads them.

use crate::instruction_set::InstructionSet;

/// Copies bytes; whole lines of the target are written around the caches.
pub type Stream = unsafe extern "C" fn(to: *mut u8, from: *const u8, bytes: i64);

const LINE: usize = 64;

/// The stream function of this processor.
pub fn stream() -> Stream {
    #[cfg(target_arch = "x86_64")]
    match InstructionSet::native() {
        InstructionSet::Avx512 => return stream_avx512,
        InstructionSet::Avx2 => return stream_avx2,
        _ => {}
    }
    // Arm has no store around the caches for one register, and pairs of them are a hint that its makers advise against.
    copy
}

unsafe extern "C" fn copy(to: *mut u8, from: *const u8, bytes: i64) {
    // SAFETY: as promised by the caller: two places of this size.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes as usize) };
}

/// Copies whole lines of the target by `line`, what lies before and after them as usual.
///
/// # Safety
/// Two places of this size; `line` copies a line to an address that is a multiple of one.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn by_lines(to: *mut u8, from: *const u8, bytes: i64, line: impl Fn(*mut u8, *const u8)) {
    let bytes = bytes as usize;
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    // SAFETY: all within the two places; the streamed part of the target starts on a line.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for n in 0..lines {
            let at = head + n * LINE;
            line(to.add(at), from.add(at));
        }
        let done = head + lines * LINE;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe extern "C" fn stream_avx512(to: *mut u8, from: *const u8, bytes: i64) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    // SAFETY: as promised by the caller, and of `by_lines`.
    unsafe { by_lines(to, from, bytes, |to, from| _mm512_stream_si512(to.cast(), _mm512_loadu_si512(from.cast()))) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe extern "C" fn stream_avx2(to: *mut u8, from: *const u8, bytes: i64) {
    use std::arch::x86_64::{_mm256_loadu_si256, _mm256_stream_si256};
    // SAFETY: as promised by the caller, and of `by_lines`. Both halves of a line are written one after the other, so that it leaves the
    // write-combining buffer whole.
    unsafe {
        by_lines(to, from, bytes, |to, from| {
            let halves = [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(LINE / 2).cast())];
            _mm256_stream_si256(to.cast(), halves[0]);
            _mm256_stream_si256(to.add(LINE / 2).cast(), halves[1]);
        })
    }
}

/// Makes streamed stores visible before other workers see that the kernel is done.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has it.
    unsafe {
        std::arch::x86_64::_mm_sfence()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_function_copies() {
        let mut functions: Vec<Stream> = vec![copy, stream()];
        #[cfg(target_arch = "x86_64")]
        if InstructionSet::of_processor() <= InstructionSet::Avx2 {
            functions.push(stream_avx2);
        }
        let from: Vec<u8> = (0..1000u32).map(|n| (n * 7) as u8).collect();
        for function in functions {
            for (first, bytes) in [(0, 0), (0, 1), (3, 61), (5, 64), (1, 700), (64, 128)] {
                let mut to = vec![0; 1000];
                // SAFETY: all within both.
                unsafe { function(to[first..].as_mut_ptr(), from.as_ptr(), bytes as i64) };
                fence();
                assert_eq!((&to[first..first + bytes], to[first + bytes]), (&from[..bytes], 0), "{first} {bytes}");
            }
        }
    }
}
