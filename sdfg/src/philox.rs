//! Philox 4×32-10, the counter-based generator behind dropout's masks.
//!
//! Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC'11). The mask of element `e` of a stream is
//! the 16-bit lane `e mod 8` of the block with counter `e div 8`; the key is made from seed and stream, and the step is
//! part of the counter. The reference stands here; kernels print the same function in their own language.

/// Factors of the two halves of a counter.
pub const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What a round adds to the key.
pub const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds over one 128-bit counter.
pub fn block(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let a = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
    }
    counter
}

/// The hash (FNV-1a, 64 bits) of a stream's name.
pub fn hash(stream: &str) -> u64 {
    stream.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The key of a stream: the seed mixed with the hash of the stream's name.
pub fn key(seed: u64, stream: &str) -> [u32; 2] {
    let hash = hash(stream);
    // One round of splitmix64, so that seeds that differ in one bit give unrelated keys.
    let mut mixed = (seed ^ hash).wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^= mixed >> 31;
    [mixed as u32, (mixed >> 32) as u32]
}

/// The 16 random bits of one element.
pub fn lane(key: [u32; 2], step: u64, element: u64) -> u16 {
    let counter = element / 8;
    let block = block([counter as u32, (counter >> 32) as u32, step as u32, (step >> 32) as u32], key);
    let at = (element % 8) as usize;
    (block[at / 2] >> (16 * (at % 2))) as u16
}

/// How many of the 65,536 lane values drop an element: the rate is rounded to a multiple of 2⁻¹⁶.
pub fn dropped(rate: f64) -> u32 {
    (rate * 65536.0).round().clamp(0.0, 65536.0) as u32
}

/// The rate that is really applied.
pub fn effective_rate(rate: f64) -> f64 {
    f64::from(dropped(rate)) / 65536.0
}

/// Dropout's factor for one element: 0 if its lane is below the threshold, else 1/(1 − effective rate).
pub fn keep(key: [u32; 2], step: u64, element: u64, rate: f64) -> f64 {
    if u32::from(lane(key, step, element)) < dropped(rate) { 0.0 } else { kept(rate) }
}

/// Dropout's factor for what is kept: 1/(1 − effective rate).
pub fn kept(rate: f64) -> f64 {
    65536.0 / f64::from(65536 - dropped(rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution (kat_vectors, philox4x32, 10 rounds).
    #[test]
    fn known_answers() {
        assert_eq!(block([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(block([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        assert_eq!(block(counter, [0xa409_3822, 0x299f_31d0]), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }

    #[test]
    fn the_share_of_kept_elements_is_the_rate() {
        let key = key(7, "alpha");
        let kept = (0..100_000).filter(|e| keep(key, 3, *e, 0.1) > 0.0).count();
        assert!((kept as f64 / 100_000.0 - 0.9).abs() < 0.005, "{kept}");
        assert_eq!(keep(key, 3, 5, 0.0), 1.0);
        assert_eq!(keep(key, 3, 5, 1.0), 0.0);
    }
}
