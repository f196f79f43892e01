//! Dropout lanes for generated kernels: rows of Philox output along any stride, eight counters at a time.
//!
//! Generated code calls this through a pointer: the wide code is compiled once, for the processor at hand, and not again with
//! each kernel.

use crate::instruction_set::InstructionSet;
use sdfg::philox::{self, MULTIPLIER, WEYL};

/// A run-time dropout mask of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Mask {
    pub stream: String,
    pub rate: f64,
}

/// A dropout mask of a kernel, as generated code passes it on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    pub step: u64,
    /// What kept elements are multiplied by.
    pub factor: f64,
    pub key: [u32; 2],
    /// Lanes below it are dropped; 0 keeps everything.
    pub threshold: u32,
    pub unused: u32,
}

/// What a run decides about the masks of a kernel.
pub fn keeps(masks: &[Mask], seed: u64, step: u64, dropout: bool) -> Vec<Keep> {
    let keep = |mask: &Mask| {
        let threshold = if dropout { philox::dropped(mask.rate) } else { 0 };
        let factor = 65536.0 / f64::from(65536 - threshold);
        Keep { step, factor, key: philox::key(seed, &mask.stream), threshold, unused: 0 }
    };
    masks.iter().map(keep).collect()
}

/// The lanes of the elements `first + n·stride`, n < `count`: a pointer to consecutive lanes within `room`.
///
/// `room` holds [`room`]`(count)` lanes. If the stride is a multiple of 8, the lanes of the eight elements that share a
/// block with each of these are left there as well, and `held` says which: the next call gets them from there.
pub type DrawRowFn =
    unsafe extern "C" fn(keep: *const Keep, first: i64, stride: i64, count: i64, room: *mut u16, held: *mut i64) -> *const u16;

/// Lanes in one Philox block, and counters made at a time.
const WIDTH: usize = 8;
const LANES: usize = WIDTH * WIDTH;

/// Lanes that a row of `count` elements needs room for.
pub fn room(count: usize, stride: i64) -> usize {
    if stride == 1 { count + 2 * LANES } else { WIDTH * count.next_multiple_of(WIDTH) }
}

/// The fastest row function of this processor.
pub fn row() -> DrawRowFn {
    #[cfg(target_arch = "x86_64")]
    match InstructionSet::native() {
        InstructionSet::Avx512 => return row_avx512,
        InstructionSet::Avx2 => return row_avx2,
        _ => {}
    }
    // With NEON, which is always there, the compiler makes vectors of the loops over eight counters by itself.
    row_portable
}

/// The keys of the ten rounds, as wide as the elements of registers that they are spread over: that is one read then.
struct Rounds {
    keys: [[u64; 2]; 10],
    step: u64,
}

impl Rounds {
    #[inline(always)]
    fn new(keep: &Keep) -> Self {
        let mut keys = [keep.key; 10];
        for n in 1..10 {
            keys[n] = [keys[n - 1][0].wrapping_add(WEYL[0]), keys[n - 1][1].wrapping_add(WEYL[1])];
        }
        Rounds { keys: keys.map(|key| key.map(u64::from)), step: keep.step }
    }
}

unsafe extern "C" fn row_portable(keep: *const Keep, first: i64, stride: i64, count: i64, room: *mut u16, held: *mut i64) -> *const u16 {
    // SAFETY: as promised by the caller, and of `fill`.
    unsafe { fill(&*keep, first, stride, count as usize, room, &mut *held, (in_order, turned)) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe extern "C" fn row_avx512(keep: *const Keep, first: i64, stride: i64, count: i64, room: *mut u16, held: *mut i64) -> *const u16 {
    // SAFETY: as promised by the caller, and of `fill`; the processor has been asked.
    unsafe {
        let in_order = |rounds: &Rounds, counters, to| in_order_avx512(words_avx512(rounds, counters), to);
        let turned = |rounds: &Rounds, counters, to, pitch| turned_avx512(words_avx512(rounds, counters), to, pitch);
        fill(&*keep, first, stride, count as usize, room, &mut *held, (in_order, turned))
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe extern "C" fn row_avx2(keep: *const Keep, first: i64, stride: i64, count: i64, room: *mut u16, held: *mut i64) -> *const u16 {
    // SAFETY: as promised by the caller, and of `fill`; the processor has been asked.
    unsafe {
        let in_order = |rounds: &Rounds, counters, to| in_order_avx2(words_avx2(rounds, counters), to);
        let turned = |rounds: &Rounds, counters, to, pitch| turned_avx2(words_avx2(rounds, counters), to, pitch);
        fill(&*keep, first, stride, count as usize, room, &mut *held, (in_order, turned))
    }
}

/// Takes from two functions what eight blocks hold: all lanes of the first, of the second and so on; or, `pitch` lanes apart, the first
/// lane of all, the second of all and so on.
///
/// # Safety
/// `to` holds `room(count, stride)` lanes; the functions write 64 lanes, and eight rows of eight lanes.
#[inline(always)]
unsafe fn fill(
    keep: &Keep,
    first: i64,
    stride: i64,
    count: usize,
    to: *mut u16,
    held: &mut i64,
    (in_order, turned): (impl Fn(&Rounds, [u64; WIDTH], *mut u16), impl Fn(&Rounds, [u64; WIDTH], *mut u16, usize)),
) -> *const u16 {
    if keep.threshold == 0 {
        return to;
    }
    let rounds = Rounds::new(keep);
    let (block, lane) = (first >> 3, (first & 7) as usize);
    let counters = |step: i64| {
        let mut counters = [0; WIDTH];
        for (n, counter) in counters.iter_mut().enumerate() {
            *counter = (block + n as i64 * step) as u64;
        }
        counters
    };
    // Added to rather than made anew: they stay in one register.
    let next = |mut counters: [u64; WIDTH], step: i64| {
        for counter in &mut counters {
            *counter = counter.wrapping_add((step * WIDTH as i64) as u64);
        }
        counters
    };
    if stride == 1 {
        let mut counters = counters(1);
        for n in (0..count + lane).step_by(LANES) {
            // SAFETY: n < count + 7, and there is room for 128 lanes more than `count`.
            in_order(&rounds, counters, unsafe { to.add(n) });
            counters = next(counters, 1);
        }
        // SAFETY: as above.
        return unsafe { to.add(lane) };
    }
    if stride % WIDTH as i64 == 0 {
        let pitch = count.next_multiple_of(WIDTH);
        if *held != block {
            let step = stride / WIDTH as i64;
            let mut counters = counters(step);
            for n in (0..count).step_by(WIDTH) {
                // SAFETY: eight rows of `pitch` lanes.
                turned(&rounds, counters, unsafe { to.add(n) }, pitch);
                counters = next(counters, step);
            }
            *held = block;
        }
        // SAFETY: as above.
        return unsafe { to.add(lane * pitch) };
    }
    for n in (0..count).step_by(WIDTH) {
        let elements: [i64; WIDTH] = std::array::from_fn(|c| first + (n + c) as i64 * stride);
        let mut lanes = [0; LANES];
        in_order(&rounds, elements.map(|e| (e >> 3) as u64), lanes.as_mut_ptr());
        let chosen: [u16; WIDTH] = std::array::from_fn(|c| lanes[c * WIDTH + (elements[c] & 7) as usize]);
        // SAFETY: `count` rounded up to a multiple of eight.
        unsafe { to.add(n).cast::<[u16; WIDTH]>().write_unaligned(chosen) };
    }
    to
}

/// The four words of eight blocks, each in the low half of its element. Compilers make vectors of the loop, with the multiplications of
/// halves that every vector unit has.
#[inline(always)]
fn words(rounds: &Rounds, counters: [u64; WIDTH]) -> [[u64; WIDTH]; 4] {
    const LOW: u64 = 0xffff_ffff;
    let (mut c0, mut c1, mut c2, mut c3) = (counters, [0; WIDTH], [rounds.step & LOW; WIDTH], [rounds.step >> 32; WIDTH]);
    for n in 0..WIDTH {
        c1[n] = c0[n] >> 32;
    }
    for key in &rounds.keys {
        for n in 0..WIDTH {
            let a = u64::from(MULTIPLIER[0]) * (c0[n] & LOW);
            let b = u64::from(MULTIPLIER[1]) * (c2[n] & LOW);
            c0[n] = (b >> 32) ^ (c1[n] & LOW) ^ key[0];
            c2[n] = (a >> 32) ^ (c3[n] & LOW) ^ key[1];
            (c1[n], c3[n]) = (b, a);
        }
    }
    [c0, c1, c2, c3]
}

/// The lanes of eight blocks, one block after the other.
#[inline(always)]
fn in_order(rounds: &Rounds, counters: [u64; WIDTH], to: *mut u16) {
    let [c0, c1, c2, c3] = words(rounds, counters);
    let mut lanes = [0u16; LANES];
    for n in 0..WIDTH {
        for (pair, word) in [c0[n], c1[n], c2[n], c3[n]].into_iter().enumerate() {
            lanes[n * WIDTH + 2 * pair] = word as u16;
            lanes[n * WIDTH + 2 * pair + 1] = (word >> 16) as u16;
        }
    }
    // SAFETY: as `fill` promises.
    unsafe { to.cast::<[u16; LANES]>().write_unaligned(lanes) };
}

/// The first lanes of eight blocks, `pitch` further their second lanes, and so on.
#[inline(always)]
fn turned(rounds: &Rounds, counters: [u64; WIDTH], to: *mut u16, pitch: usize) {
    for (pair, word) in words(rounds, counters).into_iter().enumerate() {
        let (mut lower, mut upper) = ([0u16; WIDTH], [0u16; WIDTH]);
        for n in 0..WIDTH {
            (lower[n], upper[n]) = (word[n] as u16, (word[n] >> 16) as u16);
        }
        // SAFETY: as `fill` promises.
        unsafe {
            to.add(2 * pair * pitch).cast::<[u16; WIDTH]>().write_unaligned(lower);
            to.add((2 * pair + 1) * pitch).cast::<[u16; WIDTH]>().write_unaligned(upper);
        }
    }
}

/// The four words of eight blocks, with eight 64-bit elements to a register, each holding one word in its low half; the high half
/// is noise.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn words_avx512(rounds: &Rounds, counters: [u64; WIDTH]) -> [std::arch::x86_64::__m512i; 4] {
    use std::arch::x86_64::*;
    let all = |word: u32| _mm512_set1_epi64(i64::from(word));
    // A shuffle takes a high half to the low one: shifts compete with the products for one port of the processor.
    let high = |x| _mm512_shuffle_epi32::<_MM_PERM_DDBB>(x);
    // SAFETY: eight 64-bit integers.
    let mut c0 = unsafe { _mm512_loadu_si512(counters.as_ptr().cast()) };
    let mut c1 = high(c0);
    let (mut c2, mut c3) = (all(rounds.step as u32), all((rounds.step >> 32) as u32));
    for key in &rounds.keys {
        let (a, b) = (_mm512_mul_epu32(all(MULTIPLIER[0]), c0), _mm512_mul_epu32(all(MULTIPLIER[1]), c2));
        // 0x96: the exclusive or of three.
        let [first, second] = [_mm512_set1_epi64(key[0] as i64), _mm512_set1_epi64(key[1] as i64)];
        c0 = _mm512_ternarylogic_epi64::<0x96>(high(b), c1, first);
        c2 = _mm512_ternarylogic_epi64::<0x96>(high(a), c3, second);
        (c1, c3) = (b, a);
    }
    [c0, c1, c2, c3]
}

/// As [`in_order`], of words that were made already.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn in_order_avx512([c0, c1, c2, c3]: [std::arch::x86_64::__m512i; 4], to: *mut u16) {
    use std::arch::x86_64::*;
    let low = _mm512_set1_epi64(0xffff_ffff);
    let front = _mm512_or_si512(_mm512_and_si512(c0, low), _mm512_slli_epi64::<32>(c1));
    let back = _mm512_or_si512(_mm512_and_si512(c2, low), _mm512_slli_epi64::<32>(c3));
    // SAFETY: as `fill` promises.
    unsafe {
        _mm512_storeu_si512(to.cast(), _mm512_permutex2var_epi64(front, _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), back));
        _mm512_storeu_si512(to.add(32).cast(), _mm512_permutex2var_epi64(front, _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4), back));
    }
}

/// As [`turned`], of words that were made already: each holds two lanes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn turned_avx512(words: [std::arch::x86_64::__m512i; 4], to: *mut u16, pitch: usize) {
    use std::arch::x86_64::*;
    for (pair, word) in words.into_iter().enumerate() {
        // SAFETY: as `fill` promises.
        unsafe {
            let to = to.add(2 * pair * pitch);
            _mm_storeu_si128(to.cast(), _mm512_cvtepi64_epi16(word));
            _mm_storeu_si128(to.add(pitch).cast(), _mm512_cvtepi64_epi16(_mm512_srli_epi64::<16>(word)));
        }
    }
}

/// As [`words_avx512`], four 64-bit elements to a register: of each word the first four blocks, then the other four.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn words_avx2(rounds: &Rounds, counters: [u64; WIDTH]) -> [[std::arch::x86_64::__m256i; 2]; 4] {
    use std::arch::x86_64::*;
    // Not by `map`: a function that is compiled for processors without these instructions cannot become part of this one.
    let high = |x: __m256i| _mm256_shuffle_epi32::<0xf5>(x);
    // SAFETY: eight 64-bit integers.
    let mut c0 = unsafe { [_mm256_loadu_si256(counters.as_ptr().cast()), _mm256_loadu_si256(counters.as_ptr().add(4).cast())] };
    let mut c1 = [high(c0[0]), high(c0[1])];
    let mut c2 = [_mm256_set1_epi64x(i64::from(rounds.step as u32)); 2];
    let mut c3 = [_mm256_set1_epi64x((rounds.step >> 32) as i64); 2];
    let multipliers = [_mm256_set1_epi64x(i64::from(MULTIPLIER[0])), _mm256_set1_epi64x(i64::from(MULTIPLIER[1]))];
    for key in &rounds.keys {
        let (first, second) = (_mm256_set1_epi64x(key[0] as i64), _mm256_set1_epi64x(key[1] as i64));
        for n in 0..2 {
            let (a, b) = (_mm256_mul_epu32(multipliers[0], c0[n]), _mm256_mul_epu32(multipliers[1], c2[n]));
            c0[n] = _mm256_xor_si256(_mm256_xor_si256(c1[n], first), high(b));
            c2[n] = _mm256_xor_si256(_mm256_xor_si256(c3[n], second), high(a));
            (c1[n], c3[n]) = (b, a);
        }
    }
    [c0, c1, c2, c3]
}

/// As [`in_order`], of words that were made already.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn in_order_avx2([c0, c1, c2, c3]: [[std::arch::x86_64::__m256i; 2]; 4], to: *mut u16) {
    use std::arch::x86_64::*;
    let pair = |even: __m256i, odd: __m256i| _mm256_blend_epi32::<0b1010_1010>(even, _mm256_slli_epi64::<32>(odd));
    for n in 0..2 {
        let (front, back) = (pair(c0[n], c1[n]), pair(c2[n], c3[n]));
        // Of four blocks the first and the third, the second and the fourth.
        let (even, odd) = (_mm256_unpacklo_epi64(front, back), _mm256_unpackhi_epi64(front, back));
        // SAFETY: as `fill` promises: 32 lanes each time.
        unsafe {
            let to = to.add(n * LANES / 2);
            _mm256_storeu_si256(to.cast(), _mm256_permute2x128_si256::<0x20>(even, odd));
            _mm256_storeu_si256(to.add(LANES / 4).cast(), _mm256_permute2x128_si256::<0x31>(even, odd));
        }
    }
}

/// As [`turned`], of words that were made already: each holds two lanes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn turned_avx2(words: [[std::arch::x86_64::__m256i; 2]; 4], to: *mut u16, pitch: usize) {
    use std::arch::x86_64::*;
    // Within each half of a register: the lower lanes of four words, then their upper lanes, those of the first blocks before the others'.
    let split = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15));
    let pairs = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (pair, [first, second]) in words.into_iter().enumerate() {
        let both = _mm256_blend_epi32::<0b1010_1010>(first, _mm256_slli_epi64::<32>(second));
        let lanes = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(both, split), pairs);
        // SAFETY: as `fill` promises.
        unsafe {
            let to = to.add(2 * pair * pitch);
            _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(lanes));
            _mm_storeu_si128(to.add(pitch).cast(), _mm256_extracti128_si256::<1>(lanes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdfg::philox;

    /// Every row function that this processor can run.
    fn functions() -> Vec<DrawRowFn> {
        let mut functions: Vec<DrawRowFn> = vec![row(), row_portable];
        #[cfg(target_arch = "x86_64")]
        if InstructionSet::of_processor() <= InstructionSet::Avx2 {
            functions.push(row_avx2);
        }
        functions
    }

    #[test]
    fn rows_equal_the_reference() {
        let keep = Keep { step: 5, factor: 1.0, key: philox::key(11, "alpha"), threshold: 1, unused: 0 };
        for function in functions() {
            for (first, stride, count) in [(0, 1, 64), (13, 1, 200), (5, 8, 19), (1 << 35, 24, 70), (3, 21, 33), (7, 0, 9), (2, -3, 1)] {
                let mut room = vec![0; super::room(count, stride)];
                let mut held = -1;
                // The second row of a block comes from what the first has left.
                for first in [first, first ^ 1] {
                    // SAFETY: room for a row of this many.
                    let got = unsafe {
                        let row = function(&keep, first, stride, count as i64, room.as_mut_ptr(), &mut held);
                        std::slice::from_raw_parts(row, count)
                    };
                    let want: Vec<u16> =
                        (0..count as i64).map(|n| philox::lane(keep.key, keep.step, (first + n * stride) as u64)).collect();
                    assert_eq!(got, want, "{first} {stride} {count}");
                }
            }
        }
    }
}
