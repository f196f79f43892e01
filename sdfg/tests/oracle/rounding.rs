//! Rounding to 16 bits against distances: every pair of neighbours in a type, and what lies between them.

use half::{bf16, f16};
use sdfg::Dtype;
use sdfg::rounding::{to_bf16, to_f16};

/// What both types are asked for.
struct Type {
    name: &'static str,
    nearest: fn(f64) -> u16,
    value: fn(u16) -> f64,
    /// Bits of the largest number.
    largest: u16,
    /// Where the next number would be, had the type one more exponent.
    beyond: f64,
}

const TYPES: [Type; 2] = [
    Type {
        name: "bf16",
        nearest: |v| to_bf16(v).to_bits(),
        value: |bits| f64::from(f32::from_bits(u32::from(bits) << 16)),
        largest: 0x7f7f,
        beyond: f64::from_bits((1023 + 128) << 52),
    },
    Type { name: "f16", nearest: |v| to_f16(v).to_bits(), value: f16_value, largest: 0x7bff, beyond: 65536.0 },
];

/// The value of an f16 by its definition.
fn f16_value(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = if exponent == 0 { fraction * 2f64.powi(-24) } else { (1024.0 + fraction) * 2f64.powi(exponent - 25) };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// Between any two neighbours, subnormals and the step to infinity among them: the halfway point goes to the even one, and the doubles
/// on both sides of it, and a quarter of the way, to the nearer one.
#[test]
fn every_double_goes_to_the_nearest_of_two_neighbours() {
    for t in TYPES {
        for low in 0..=t.largest {
            let (below, above) = ((t.value)(low), if low == t.largest { t.beyond } else { (t.value)(low + 1) });
            let half = below + (above - below) / 2.0;
            let even = low + (low & 1);
            for (value, want) in [
                (below, low),
                (below + (above - below) / 4.0, low),
                (half.next_down(), low),
                (half, even),
                (half.next_up(), low + 1),
                (above - (above - below) / 4.0, low + 1),
                (above.next_down(), low + 1),
                (below.next_up(), low),
            ] {
                assert_eq!((t.nearest)(value), want, "{} of {value:e}, between {below:e} and {above:e}", t.name);
                assert_eq!((t.nearest)(-value), want | 0x8000, "{} of {:e}", t.name, -value);
            }
        }
    }
}

#[test]
fn what_no_double_rounds_to_a_number_keeps_its_kind() {
    for t in TYPES {
        let infinite = t.largest + 1;
        for huge in [t.beyond, t.beyond * 1.5, f64::MAX, f64::INFINITY] {
            assert_eq!([huge, -huge].map(t.nearest), [infinite, infinite | 0x8000], "{} of {huge:e}", t.name);
        }
        for tiny in [0.0, f64::from_bits(1), f64::MIN_POSITIVE, 1e-60] {
            assert_eq!([tiny, -tiny].map(t.nearest), [0, 0x8000], "{} of {tiny:e}", t.name);
        }
        for nan in [f64::NAN, -f64::NAN, f64::from_bits(0x7ff0_0000_0000_0001)] {
            assert!((t.value)((t.nearest)(nan)).is_nan() || t.name == "f16" && f16::from_bits((t.nearest)(nan)).is_nan());
        }
    }
}

/// Doubles in [1, 2) that share their upper 32 bits with a halfway point: the lower half alone decides.
#[test]
fn the_lower_half_of_a_double_counts() {
    let above = f64::from_bits(0x3ff0_1000_0000_0001);
    assert_eq!([Dtype::Bf16.rounded(above), to_bf16(above).to_f64()], [1.0078125, 1.0078125]);
    let above = f64::from_bits(0x3ff0_0200_0000_0001);
    assert_eq!([Dtype::F16.rounded(above), to_f16(above).to_f64()], [1.0009765625, 1.0009765625]);
    assert_eq!((bf16::from_bits(0x3f81).to_f64(), f16::from_bits(0x3c01).to_f64()), (1.0078125, 1.0009765625));
}
