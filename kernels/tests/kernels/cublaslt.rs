//! What cuBLASLt is told about a contraction, carried out literally: every description must mean the contraction.

use kernels::contraction::{ContractionAxis, GemmNest, IndexGroup, StridedLoop, Types, mappings};
use kernels::target::cuda;
use kernels::target::cuda::CudaLibrary;
use kernels::target::cuda::cublaslt::{Description, DescriptionRefusal, Descriptors, MatrixOrder, OperandView, Units, carry_out};
use sdfg::Dtype;

/// `phi,ibj->phbj` with each tensor's dims in the order in which they lie in memory, `p3 h2 …` for the extents.
fn axes(text: &str, extents: &str, memory: [&str; 3]) -> Vec<ContractionAxis> {
    let extent = |index: char| -> usize {
        extents.split(' ').find_map(|e| e.strip_prefix(index)).and_then(|n| n.parse().ok()).expect("an extent for each index")
    };
    let (inputs, out) = text.split_once("->").expect("an arrow");
    let (a, b) = inputs.split_once(',').expect("two operands");
    let stride = |t: usize, index: char| -> usize {
        match memory[t].find(index) {
            Some(at) => memory[t][at + 1..].chars().map(extent).product(),
            None => 0,
        }
    };
    let mut found: Vec<ContractionAxis> = Vec::new();
    for index in a.chars().chain(b.chars()) {
        let group = match (a.contains(index), b.contains(index), out.contains(index)) {
            (true, true, true) => IndexGroup::Batch,
            (true, false, true) => IndexGroup::Rows,
            (false, true, true) => IndexGroup::Columns,
            _ => IndexGroup::Depth,
        };
        if found.iter().all(|f| f.index != index.to_string()) {
            let strides = [stride(0, index), stride(1, index), stride(2, index)];
            found.push(ContractionAxis { index: index.to_string(), group, extent: extent(index), strides });
        }
    }
    found
}

/// Small integers: their sums are exact in any order.
fn value(seed: usize, n: usize) -> f64 {
    ((n * 7 + seed * 5) % 11) as f64 - 5.0
}

/// The contraction as a plain sum.
fn sum(axes: &[ContractionAxis], a: &[f64], b: &[f64], out: &mut [f64]) {
    let points: usize = axes.iter().map(|x| x.extent).product();
    for mut point in 0..points {
        let mut at = [0; 3];
        for axis in axes {
            for (at, stride) in at.iter_mut().zip(axis.strides) {
                *at += point % axis.extent * stride;
            }
            point /= axis.extent;
        }
        out[at[2]] += a[at[0]] * b[at[1]];
    }
}

/// Checks all descriptions of all mappings; their number.
fn check(text: &str, extents: &str, memory: [&str; 3]) -> usize {
    let axes = axes(text, extents, memory);
    let size = |t: usize| 1 + axes.iter().map(|x| (x.extent - 1) * x.strides[t]).sum::<usize>();
    let a: Vec<f64> = (0..size(0)).map(|n| value(1, n)).collect();
    let b: Vec<f64> = (0..size(1)).map(|n| value(2, n)).collect();
    let mut want = vec![0.0; size(2)];
    sum(&axes, &a, &b, &mut want);
    let mut checked = 0;
    for mapping in mappings(&axes) {
        let call = GemmNest::new(&mapping, &axes).expect("a mapping of these axes");
        for (form, batching, description) in Description::all(&call, [0; 3], 1.0) {
            assert_eq!(description.flop(), call.flop(), "{text} {mapping} {form} {batching}");
            let mut got = vec![f64::NAN; size(2)];
            let stored = std::cell::RefCell::new(&mut got);
            let read = |operand: OperandView, at: usize| match operand {
                OperandView::A => a[at],
                OperandView::B => b[at],
                _ => stored.borrow()[at],
            };
            carry_out(&description, &read, &mut |_, at, value| stored.borrow_mut()[at] = value);
            assert_eq!(got, want, "{text} in {memory:?}, {mapping}, {form}, {batching}: {description:?}");
            checked += 1;
        }
    }
    checked
}

fn orders(dims: &str) -> Vec<String> {
    match dims.len() {
        0 => vec![String::new()],
        _ => dims
            .char_indices()
            .flat_map(|(n, first)| {
                let rest = format!("{}{}", &dims[..n], &dims[n + 1..]);
                orders(&rest).into_iter().map(move |o| format!("{first}{o}"))
            })
            .collect(),
    }
}

#[test]
fn every_layout_of_the_attention_contractions() {
    let mut checked = 0;
    // Projection, scores, values, weight gradient.
    for (text, a, b, out) in [("phi,ibj->phbj", "phi", "ibj", "phbj"), ("phbk,phbj->hbjk", "phbk", "phbj", "hbjk")] {
        let (a, b, out) = (orders(a), orders(b), orders(out));
        for (n, (x, y)) in a.iter().flat_map(|x| b.iter().map(move |y| (x, y))).enumerate() {
            // Every layout of the operands, each with two of the result.
            for z in [&out[n % out.len()], &out[(7 * n + 3) % out.len()]] {
                checked += check(text, "p3 h2 i4 b2 j3 k2", [x, y, z]);
            }
        }
    }
    println!("{checked} descriptions mean their contractions");
    assert!(checked > 1000, "{checked}");
}

#[test]
fn sizes_of_one_and_vectors() {
    for extents in ["m1 n3 k4", "m3 n1 k4", "m3 n4 k1", "m1 n1 k5", "m1 n1 k1"] {
        for memory in [["mk", "kn", "mn"], ["km", "nk", "nm"], ["mk", "nk", "mn"]] {
            assert!(check("mk,kn->mn", extents, memory) > 0, "{extents} {memory:?}");
        }
    }
}

#[test]
fn one_launch_where_the_library_has_words_for_it() {
    let call = |text, memory| {
        let axes = axes(text, "p4 h3 i8 b2 j5 k5", memory);
        let mapping = mappings(&axes).into_iter().next().expect("a mapping");
        GemmNest::new(&mapping, &axes).expect("a call")
    };
    // All heads and positions in one product.
    let projection = call("phi,ibj->phbj", ["phi", "bji", "phbj"]);
    let (_, _, one) = Description::all(&projection, [0; 3], 1.0).swap_remove(0);
    assert_eq!((one.launches.len(), one.batch, one.m * one.n * one.k), (1, 1, 4 * 3 * 8 * 2 * 5));
    // Heads and batches at one stride.
    let scores = call("phbk,phbj->hbjk", ["hbkp", "hbjp", "hbjk"]);
    let strided = Description::all(&scores, [0; 3], 0.5);
    assert!(strided.iter().any(|(_, _, d)| d.launches.len() == 1 && d.batch == 6 && !d.pointers), "{strided:?}");
    assert!(strided.iter().any(|(_, _, d)| d.launches.len() == 1 && d.batch == 6 && d.pointers), "{strided:?}");
    // Heads and batches at two strides: a batch of one, launches of the other, or addresses for all.
    let apart = call("phbk,phbj->hbjk", ["bhkp", "hbjp", "hbjk"]);
    let found = Description::all(&apart, [0; 3], 1.0);
    assert!(found.iter().any(|(_, _, d)| d.launches.len() > 1 && d.batch > 1), "{found:?}");
    assert!(found.iter().any(|(_, _, d)| d.launches.len() == 1 && d.pointers && d.batch == 6), "{found:?}");
}

#[test]
fn what_has_no_unit_stride_is_refused() {
    let far = |extent, a, b, c| StridedLoop { extent, strides: [a, b, c] };
    let call = GemmNest { m: far(3, 8, 0, 1), n: far(4, 0, 1, 3), k: far(4, 2, 4, 0), batch: vec![], depth: vec![] };
    let refusal = Description::new(&call, [0; 3], 1.0, MatrixOrder::Columns, cuda::cublaslt::Batching::Strided);
    assert_eq!(refusal, Err(DescriptionRefusal::Strides { matrix: 'a', rows: 8, columns: 2 }));
}

/// The library itself, which makes descriptors without a GPU, takes every description, and notes what it was told.
#[test]
fn the_library_takes_every_description() -> Result<(), Box<dyn std::error::Error>> {
    if let Err(missing) = CudaLibrary::CublasLt.load() {
        println!("skipped: {missing}");
        return Ok(());
    }
    let types = |factor, out| Types::of([factor, factor, out]).expect("types that are multiplied");
    let (single, double) = (types(Dtype::F32, Dtype::F32), types(Dtype::F64, Dtype::F64));
    let narrow = [Dtype::Bf16, Dtype::F16].into_iter().flat_map(|factor| [types(factor, factor), types(factor, Dtype::F32)]);
    let all: Vec<Types> = [single, double].into_iter().chain(narrow).collect();
    let mut taken = 0;
    for memory in [["phbk", "phbj", "hbjk"], ["hbkp", "hbjp", "hbjk"], ["bhkp", "hbjp", "hbjk"], ["kpbh", "jphb", "jkhb"]] {
        let axes = axes("phbk,phbj->hbjk", "p8 h2 b3 j5 k7", memory);
        for mapping in mappings(&axes) {
            let call = GemmNest::new(&mapping, &axes).ok_or("a mapping of these axes")?;
            for (form, batching, d) in Description::all(&call, [0, 3, 16], 0.5) {
                for types in all.iter().copied() {
                    let made = Descriptors::new(&d, types, Units::Any);
                    // Sums in between would be rounded.
                    let refused = types.narrows() && d.launches.iter().any(|l| l.accumulate);
                    assert_eq!(made.is_err(), refused, "{form} {batching} {d:?}");
                    let Ok(descriptors) = made else { continue };
                    for units in Units::ALL {
                        descriptors.preference(32 << 20, units)?;
                    }
                    let told = [&d.a, &d.b, &d.d].map(|m| [m.rows as u64, m.columns as u64, m.leading as u64]);
                    assert_eq!(descriptors.noted()?, told);
                    taken += 1;
                }
            }
        }
    }
    assert!(taken > 20, "{taken}");
    println!("the library takes {taken} descriptions");
    Ok(())
}
