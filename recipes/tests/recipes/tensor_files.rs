//! Tensors from users: every type of both formats, and refused values with their places.

use ndarray::{ArrayD, IxDyn};
use recipes::load::load_str;
use recipes::pipeline::oracle::tensor_types::{FILE_TYPES, Number};
use recipes::pipeline::oracle::tensors::{read, write};
use safetensors::tensor::{Dtype as SafeDtype, TensorView};
use sdfg::interpret::Tensors;
use sdfg::{Dtype, Sdfg};
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

/// A program with named inputs `[a, b]` of 2 × 3, each stored in a type.
fn given(tensors: &[(&str, &str)]) -> Sdfg {
    let inputs: String = tensors.iter().map(|(name, dtype)| format!("  {name}: {{dims: [a, b], dtype: {dtype}}}\n")).collect();
    let text = format!("model: m\ndims: {{a: 2, b: 3}}\ninputs:\n{inputs}steps:\n  - \"y[a,b] = {}[a,b]\"\n", tensors[0].0);
    load_str("m.yaml", &text, &[]).unwrap_or_else(|e| panic!("{e}")).program
}

/// Files written by NumPy 2.4, with `numpy.savez_compressed` and `safetensors.numpy.save_file`: the same six numbers in each type that
/// can hold them; `turned` is f16 in Fortran's order, `reversed` f16 with the highest byte first.
#[test]
fn every_type_is_read_from_both_formats() -> Result<(), Failure> {
    let real = [0.5, -2.0, 1.5, 96.0, 0.0, -0.125];
    let wanted = |name: &str| match name.chars().next() {
        Some('i') => [-3.0, 0.0, 100.0, 1.0, 2.0, -128.0],
        Some('u') => [3.0, 0.0, 100.0, 1.0, 2.0, 200.0],
        _ if name == "bool" => [1.0, 0.0, 0.0, 1.0, 1.0, 0.0],
        _ => real,
    };
    for (file, has) in [("types.safetensors", &["bf16"][..]), ("types.npz", &["turned", "reversed"])] {
        let own = FILE_TYPES.iter().map(|t| t.name).filter(|name| *name != "bf16");
        let names: Vec<&str> = own.chain(has.iter().copied()).collect();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
        // Types wide enough for all numbers, and the narrowest ones that hold them.
        for narrow in [false, true] {
            let stored = |name: &str| match (narrow, name) {
                (false, _) => "f64",
                (true, "bool") => "bit",
                (true, name) if name.starts_with('u') => "u8",
                (true, name) if name.starts_with('i') => "i16",
                (true, _) => "bf16",
            };
            let program = given(&names.iter().map(|name| (*name, stored(name))).collect::<Vec<_>>());
            let tensors = read(&path, &program)?;
            for name in &names {
                assert_eq!(tensors[*name].iter().copied().collect::<Vec<_>>(), wanted(name), "`{name}` of {file}");
            }
        }
    }
    Ok(())
}

/// Numbers, the type that stores them, and the result: facts of the types, by hand.
#[test]
fn numbers_are_stored_exactly_or_refused() {
    use Dtype::*;
    use Number::{Real, Signed, Unsigned};
    let two_53 = 1i64 << 53;
    let kept: &[(Number, Dtype, f64)] = &[
        (Signed(i32::MAX.into()), I32, 2147483647.0),
        (Signed(i32::MIN.into()), I32, -2147483648.0),
        (Signed(-32768), I16, -32768.0),
        (Unsigned(255), U8, 255.0),
        (Signed(two_53), I64, 9007199254740992.0),
        (Signed(two_53 + 2), I64, 9007199254740994.0),
        (Signed(i64::MIN), I64, -9223372036854775808.0),
        (Signed(two_53), F64, 9007199254740992.0),
        (Unsigned(1 << 63), F64, 9223372036854775808.0),
        (Signed(16777216), F32, 16777216.0),
        (Signed(256), Bf16, 256.0),
        (Signed(2048), F16, 2048.0),
        (Real(3.0), I32, 3.0),
        (Real(-0.0), U8, 0.0),
        (Unsigned(1), Bit, 1.0),
        (Real(0.1), F32, 0.10000000149011612),
        (Real(65519.0), F16, 65504.0),
        (Real(f64::NEG_INFINITY), F16, f64::NEG_INFINITY),
    ];
    for (number, dtype, want) in kept {
        assert_eq!(number.stored(*dtype), Ok(*want), "{number:?} in {dtype}");
    }
    assert!(Real(f64::NAN).stored(F32).is_ok_and(f64::is_nan));
    let whole = |least: i64, most: i64| format!("its whole numbers go from {least} to {most}");
    let refused: &[(Number, Dtype, String)] = &[
        (Signed(1 << 40), I32, whole(-2147483648, 2147483647)),
        (Signed(2147483648), I32, whole(-2147483648, 2147483647)),
        (Signed(-2147483649), I32, whole(-2147483648, 2147483647)),
        (Signed(300), U8, whole(0, 255)),
        (Signed(-1), U8, whole(0, 255)),
        (Unsigned(32768), I16, whole(-32768, 32767)),
        (Signed(2), Bit, whole(0, 1)),
        (Unsigned(1 << 63), I64, whole(i64::MIN, i64::MAX)),
        (Real(9223372036854775808.0), I64, whole(i64::MIN, i64::MAX)),
        (Signed(two_53 + 1), I64, "beyond 2^53 a whole number must be one that f64 holds, too".into()),
        (Unsigned(u64::MAX), I64, "beyond 2^53 a whole number must be one that f64 holds, too".into()),
        (Signed(two_53 + 1), F64, "a whole number must stay what it is, and the nearest is 9007199254740992".into()),
        (Signed(16777217), F32, "a whole number must stay what it is, and the nearest is 16777216".into()),
        (Signed(257), Bf16, "a whole number must stay what it is, and the nearest is 256".into()),
        (Unsigned(65520), F16, "a whole number must stay what it is, and the nearest is inf".into()),
        (Real(2.5), I32, "it is no whole number".into()),
        (Real(f64::NAN), I64, "it is no whole number".into()),
        (Real(f64::INFINITY), U8, "it is no whole number".into()),
        (Real(65520.0), F16, "its largest number is 6.5504e4".into()),
        (Real(1e39), F32, "its largest number is 3.4028234663852886e38".into()),
    ];
    for (number, dtype, why) in refused {
        let text = number.stored(*dtype).expect_err("refused");
        assert!(text.ends_with(&format!(", which {dtype} cannot hold: {why}")), "{number:?}: {text}");
    }
}

/// A safetensors file of one tensor.
fn file(folder: &Path, dtype: SafeDtype, bytes: &[u8]) -> Result<std::path::PathBuf, Failure> {
    let path = folder.join("given.safetensors");
    std::fs::write(&path, safetensors::serialize([("x", TensorView::new(dtype, vec![2, 3], bytes)?)], None)?)?;
    Ok(path)
}

#[test]
fn refused_values_have_a_place() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let says = |path: &Path, stored: &str| read(path, &given(&[("x", stored)])).expect_err("refused").to_string();
    let long: Vec<u8> = [5i64, 6, 1 << 40, 0, 0, -1].iter().flat_map(|v| v.to_le_bytes()).collect();
    let path = file(folder.path(), SafeDtype::I64, &long)?;
    assert!(says(&path, "i32").contains("`x` at [0, 2] is 1099511627776, which i32 cannot hold"), "{}", says(&path, "i32"));
    let path = file(folder.path(), SafeDtype::BOOL, &[0, 1, 1, 0, 2, 0])?;
    assert!(says(&path, "u8").contains("`x` holds [2] as its element number 4, which is no bool"), "{}", says(&path, "u8"));
    let path = file(folder.path(), SafeDtype::F8_E4M3, &[0; 6])?;
    assert!(says(&path, "f32").contains("`x` is stored as F8_E4M3, which is not read; f64, f32, f16, bf16, i64"), "{}", says(&path, "f32"));
    // The oracle refuses the same values from any source.
    let tensors = Tensors::from([("x".to_string(), ArrayD::from_shape_vec(IxDyn(&[2, 3]), vec![0.0, 1.0, 2.0, 3.0, 300.0, 5.0])?)]);
    let run = sdfg::interpret::Run { seed: 1, step: 0, dropout: true };
    let refused = sdfg::interpret::interpret(&given(&[("x", "u8")]), &tensors, &run).expect_err("refused").to_string();
    assert_eq!(refused, "the tensor `x` is declared u8, which holds whole numbers from 0 to 255; at [1, 1] it contains 300");
    Ok(())
}

/// Integers are written exactly: f32 would lose those from 2^24 on.
#[test]
fn written_tensors_are_read_back() -> Result<(), Failure> {
    let (folder, names) = (tempfile::tempdir()?, ["f64", "f32", "bf16", "f16", "i64", "i32", "i16", "u8", "bit"]);
    let tensors: Vec<(String, &str)> = names.iter().map(|name| (format!("x_{name}"), *name)).collect();
    let program = given(&tensors.iter().map(|(name, dtype)| (name.as_str(), *dtype)).collect::<Vec<_>>());
    let values = |name: &str| match name {
        "i64" => vec![9007199254740994.0, -5.0, 0.0, 16777217.0, 1.0, 2.0],
        "i32" => vec![16777217.0, -2147483648.0, 0.0, 3.0, 1.0, 2.0],
        "i16" | "u8" => vec![0.0, 1.0, 127.0, 99.0, 2.0, 3.0],
        "bit" => vec![0.0, 1.0, 1.0, 0.0, 0.0, 1.0],
        _ => vec![0.5, -1.5, f64::INFINITY, 96.0, -0.0, 0.001953125],
    };
    let array = |name: &str| ArrayD::from_shape_vec(IxDyn(&[2, 3]), values(name));
    let given: Tensors = tensors.iter().map(|(name, dtype)| Ok((name.clone(), array(dtype)?))).collect::<Result<_, Failure>>()?;
    for file in ["all.safetensors", "all.npz"] {
        let path = folder.path().join(file);
        write(&path, &given, &program)?;
        assert_eq!(read(&path, &program)?, given, "{file}");
    }
    Ok(())
}
