//! From f64 to the 16-bit floating types: to the nearest value, of two equally near the one whose last bit is 0.
//!
//! The conversions of crate `half` look at the upper half of a double alone, and so miss by one unit what lies just above a
//! halfway point. These work on all bits, in integers.

use half::{bf16, f16};

/// The bf16 nearest to a double; beyond the largest by half a unit or more it is infinite. A NaN stays one.
pub fn to_bf16(value: f64) -> bf16 {
    bf16::from_bits(nearest::<8, 7>(value))
}

/// The f16 nearest to a double; beyond the largest by half a unit or more it is infinite. A NaN stays one.
pub fn to_f16(value: f64) -> f16 {
    f16::from_bits(nearest::<5, 10>(value))
}

/// The bits of the nearest value in a type of a sign, so many bits of exponent and of fraction.
fn nearest<const EXPONENT: u32, const FRACTION: u32>(value: f64) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 63 << (EXPONENT + FRACTION)) as u16;
    let infinite = ((1u16 << EXPONENT) - 1) << FRACTION;
    if value.is_nan() {
        return sign | infinite | 1 << (FRACTION - 1);
    }
    let (biased, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    // Subnormal doubles are less than half of what either type holds.
    if biased == 0 {
        return sign;
    }
    let bias = (1 << (EXPONENT - 1)) - 1;
    let exponent = biased - 1023 + bias;
    if exponent >= (1 << EXPONENT) - 1 {
        return sign | infinite;
    }
    // Bits of the significand that go; below the normal numbers, one more for each power of two.
    let gone = 52 - FRACTION + (1 - exponent).max(0) as u32;
    if gone > 53 {
        return sign;
    }
    let significand = fraction | 1 << 52;
    let (kept, rest, half) = (significand >> gone, significand & ((1 << gone) - 1), 1 << (gone - 1));
    let up = rest > half || (rest == half && kept & 1 == 1);
    // A normal number's leading bit counts as one in the exponent, and so does what a carry adds: up to infinity.
    let below = ((exponent - 1).max(0) as u16) << FRACTION;
    sign | (below + kept as u16 + u16::from(up))
}
