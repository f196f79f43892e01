//! Stores of the size of a transformer layer: forward and backward, tens of thousands of measured configurations.

use super::synthetic::{Random, measured, session};
use layouts::measure::space::relayout_config;
use layouts::problem::{Access, Kernel, SelectionProblem, Tensor};
use layouts::store::Store;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Direction, Layout};
use std::collections::BTreeMap;

/// Kernel: reads > writes; a container is `name:dims`, one letter a dim, dims given where it first occurs.
const FORWARD: &str = "
q   x:ibj wq:phi > qd:phbj
k   x wk:phi > kd:phbk
v   x wv:phi > vd:phbk
aib qd kd vd bq:ph bk:ph bv:ph > qq:phbj kk:phbk vv:phbk
qkt kk qq > beta:hbjk
sm  beta > alpha:hbjk most:hbj sum:hbj
gam vv alpha > gamma:phbj
out wo:phi gamma > yd:ibj
ln1 yd bo:i x g1:i c1:i > r1:ibj n1:ibj mean1:bj std1:bj
up  w1:ui n1 > h1:ubj
brd h1 b1:u > h2:ubj
dn  w2:iu h2 > y2:ibj
ln2 y2 b2:i n1 g2:i c2:i > r2:ibj y:ibj mean2:bj std2:bj";
const BACKWARD: &str = "
bln2 d_y:ibj r2 mean2 std2 g2 > d_r2:ibj d_y2:ibj d_g2:i d_c2:i d_b2:i
dw2  d_y2 h2 > d_w2:iu
dh2  d_y2 w2 > d_h2:ubj
bdrb d_h2 h1 b1 > d_h1:ubj d_b1:u
dw1  d_h1 n1 > d_w1:ui
dn1  d_h1 w1 > d_n1:ibj
eln1 d_n1 d_r2 r1 mean1 std1 g1 > d_r1:ibj d_yd:ibj d_g1:i d_c1:i d_bo:i
dwo  d_yd gamma > d_wo:phi
dgam d_yd wo > d_gamma:phbj
dal  d_gamma vv > d_alpha:hbjk
dvv  d_gamma alpha > d_vv:phbk
dsm  d_alpha beta most sum > d_beta:hbjk
dqq  d_beta kk > d_qq:phbj
dkk  d_beta qq > d_kk:phbk
dbia d_qq d_kk d_vv > d_bq:ph d_bk:ph d_bv:ph
dwq  d_qq x > d_wq:phi
dwk  d_kk x > d_wk:phi
dwv  d_vv x > d_wv:phi
dx   d_qq d_kk d_vv wq wk wv d_r1 > d_x:ibj";

/// How large an invented encoder is.
#[derive(Clone, Copy)]
pub struct Size {
    /// Layouts of a container with four dims: 24, or 12 (the last two dims of the recipe stay in order).
    pub layouts: usize,
    /// Configurations measured of each kernel.
    pub measured: u64,
}

/// A store in the form of a transformer encoder layer, forward and backward. Some innermost dims suit a kernel, others
/// stride through memory; a few relayouts of every container are measured.
pub fn encoder(of: Size) -> (SelectionProblem, Store) {
    let size = |dim: char| match dim {
        'i' => 1024u64,
        'j' | 'k' => 512,
        'b' => 8,
        'h' => 16,
        'p' => 64,
        _ => 4096,
    };
    let mut random = Random(7);
    let mut store = Store::in_memory();
    store.begin(session("1")).unwrap();
    let (mut program, mut all) = (SelectionProblem::default(), BTreeMap::new());
    for (text, pass) in [(FORWARD, Direction::Forward), (BACKWARD, Direction::Backward)] {
        for line in text.trim().lines() {
            let mut access = Access::Read;
            let mut tensors = Vec::new();
            let mut words = line.split_whitespace();
            let name = words.next().unwrap();
            for word in words {
                if word == ">" {
                    access = Access::Write;
                    continue;
                }
                let data = word.split(':').next().unwrap().to_string();
                if let Some((_, dims)) = word.split_once(':') {
                    let names: Vec<String> = dims.chars().map(String::from).collect();
                    let mut layouts = Layout::permutations(&names);
                    if layouts.len() > of.layouts {
                        layouts = layouts.into_iter().step_by(24 / of.layouts).collect();
                    }
                    let bytes = 4 * dims.chars().map(size).product::<u64>();
                    for _ in 0..layouts.len().min(6) {
                        let (from, to) = (random.pick(&layouts), random.pick(&layouts));
                        if from != to {
                            // 5 to 12 GB/s, read and written.
                            let ms = 2.0 * bytes as f64 / (5e6 + random.below(7) as f64 * 1e6);
                            let mut record = measured("relayout", relayout_config(from, to), ms);
                            record.key = format!("r:{data}");
                            store.append(record).unwrap();
                        }
                    }
                    let relayout_key = format!("r:{data}");
                    program.tensors.push(Tensor {
                        data: data.clone(),
                        natural: layouts[0].clone(),
                        bytes,
                        relayout_key,
                        ..Tensor::default()
                    });
                    all.insert(data.clone(), layouts);
                }
                tensors.push((data, access));
            }
            program.kernels.push(Kernel::new(name, name, pass, tensors));
        }
    }
    for kernel in &program.kernels {
        let bytes: u64 = kernel.tensors.iter().map(|(t, _)| program.tensor(t).unwrap().bytes).sum();
        for n in 0..of.measured {
            let mut ms = bytes as f64 / 12e6 * (1.0 + random.below(1000) as f64 / 4000.0);
            let mut layouts = BTreeMap::new();
            for (data, _) in &kernel.tensors {
                let known = &all[data];
                let at = if n == 0 { 0 } else { random.below(known.len() as u64) as usize };
                layouts.insert(data.clone(), known[at].clone());
                // Some innermost dims suit a kernel, others stride through memory.
                let innermost = known[at].innermost().map_or(0, |d| d.as_bytes()[0]) as u64;
                let penalty = Random(innermost * 31 + kernel.name.len() as u64).below(4) as f64;
                ms += penalty * program.tensor(data).unwrap().bytes as f64 / 12e6;
            }
            store.append(measured(&kernel.name, KernelConfig { layouts, knobs: Knobs::default().with("v", n) }, ms)).unwrap();
        }
    }
    for weight in ["wq", "wk", "wv", "wo", "w1", "w2", "bq", "bk", "bv", "bo", "b1", "b2", "g1", "g2", "c1", "c2"] {
        program.ties.push((weight.into(), format!("d_{weight}")));
    }
    for data in ["x", "y", "d_y", "d_x"] {
        let natural = program.tensor(data).unwrap().natural.clone();
        program.boundary.insert(data.into(), natural);
    }
    (program, store)
}
