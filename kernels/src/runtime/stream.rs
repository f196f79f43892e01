//! Stores around the caches, for results that would not stay there until somebody reads them.

/// Copies bytes; whole lines of the target are written around the caches.
pub type Stream = unsafe extern "C" fn(to: *mut u8, from: *const u8, bytes: i64);

const LINE: usize = 64;

/// The stream function of this processor.
pub fn stream() -> Stream {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        return stream_avx512;
    }
    copy
}

unsafe extern "C" fn copy(to: *mut u8, from: *const u8, bytes: i64) {
    // SAFETY: as promised by the caller: two places of this size.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes as usize) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe extern "C" fn stream_avx512(to: *mut u8, from: *const u8, bytes: i64) {
    use std::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};
    let bytes = bytes as usize;
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    // SAFETY: all within the two places; the streamed part of the target starts on a line.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for n in 0..lines {
            let at = head + n * LINE;
            _mm512_stream_si512(to.add(at).cast(), _mm512_loadu_si512(from.add(at).cast()));
        }
        let done = head + lines * LINE;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes - done);
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
