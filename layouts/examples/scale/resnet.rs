//! A store in the form of ResNet-50, forward and backward: 53 convolutions in bottleneck blocks with residual edges, batch
//! normalisation and rectifiers between them; every tensor in 6 layouts.

use super::synthetic::{Random, measured, session};
use layouts::measure::space::relayout_config;
use layouts::problem::{Access, Kernel, SelectionProblem, Tensor};
use layouts::store::Store;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Direction, Layout};
use std::collections::BTreeMap;

struct Builder {
    program: SelectionProblem,
    store: Store,
    random: Random,
    layouts: BTreeMap<String, Vec<Layout>>,
    /// Kernels of the backward pass, last first.
    backward: Vec<(String, Vec<(String, Access)>)>,
    measured: u64,
}

impl Builder {
    fn tensor(&mut self, data: &str, dims: [&str; 4], bytes: u64) -> String {
        if self.layouts.contains_key(data) {
            return data.to_string();
        }
        let all: Vec<Layout> = Layout::permutations(&dims.map(String::from)).into_iter().step_by(4).collect();
        let key = format!("r:{data}");
        for from in &all {
            for to in all.iter().filter(|to| *to != from) {
                let mut record =
                    measured("relayout", relayout_config(from, to), 2.0 * bytes as f64 / (5e6 + self.random.below(7) as f64 * 1e6));
                record.key = key.clone();
                self.store.append(record).expect("in memory");
            }
        }
        self.program.tensors.push(Tensor { data: data.into(), natural: all[0].clone(), bytes, relayout_key: key, ..Tensor::default() });
        self.layouts.insert(data.into(), all);
        data.to_string()
    }

    fn kernel(&mut self, name: &str, pass: Direction, tensors: Vec<(String, Access)>) {
        let bytes: u64 = tensors.iter().map(|(t, _)| self.program.tensor(t).map_or(0, |t| t.bytes)).sum();
        for n in 0..self.measured {
            let mut ms = bytes as f64 / 12e6 * (1.0 + self.random.below(1000) as f64 / 4000.0);
            let mut layouts = BTreeMap::new();
            for (data, _) in &tensors {
                let known = &self.layouts[data];
                let at = if n == 0 { 0 } else { self.random.below(known.len() as u64) as usize };
                let innermost = known[at].innermost().map_or(0, |d| d.as_bytes()[0]) as u64;
                let penalty = Random(innermost * 31 + name.len() as u64).below(4) as f64;
                ms += penalty * self.program.tensor(data).map_or(0, |t| t.bytes) as f64 / 12e6;
                layouts.insert(data.clone(), known[at].clone());
            }
            let config = KernelConfig { layouts, knobs: Knobs::default().with("v", n) };
            self.store.append(measured(name, config, ms)).expect("in memory");
        }
        self.program.kernels.push(Kernel::new(name, name, pass, tensors));
    }

    /// A convolution with its normalisation; the last of a block adds the shortcut before its rectifier.
    fn convolution(&mut self, name: &str, x: &str, y: &str, bytes: u64, shortcut: Option<&str>) {
        let (read, write) = (|d: &str| (d.to_string(), Access::Read), |d: &str| (d.to_string(), Access::Write));
        let activation = ["n", "c", "h", "w"];
        let weight = self.tensor(&format!("w_{name}"), ["k", "c", "r", "s"], 1 << 20);
        let raw = self.tensor(&format!("raw_{name}"), activation, bytes);
        self.tensor(y, activation, bytes);
        self.kernel(&format!("conv_{name}"), Direction::Forward, vec![read(x), read(&weight), write(&raw)]);
        let mut touched = vec![read(&raw)];
        touched.extend(shortcut.map(read));
        touched.push(write(y));
        self.kernel(&format!("norm_{name}"), Direction::Forward, touched);
        let gradients = [format!("d_{y}"), format!("d_raw_{name}"), format!("d_w_{name}"), format!("d_{x}")];
        let [d_y, d_raw, d_w, d_x] = gradients;
        let mut norm = vec![read(&d_y), read(&raw), read(y), write(&d_raw)];
        norm.extend(shortcut.map(|s| (format!("d_{s}"), Access::Write)));
        self.backward.push((format!("dnorm_{name}"), norm));
        self.backward.push((format!("dw_{name}"), vec![read(&d_raw), read(x), write(&d_w)]));
        self.backward.push((format!("dx_{name}"), vec![read(&d_raw), read(&weight), write(&d_x)]));
        self.program.ties.push((weight, d_w));
    }
}

pub fn resnet(measured: u64) -> (SelectionProblem, Store) {
    let mut store = Store::in_memory();
    store.begin(session("1")).expect("in memory");
    let (program, layouts, backward) = (SelectionProblem::default(), BTreeMap::new(), Vec::new());
    let mut b = Builder { program, store, random: Random(50), layouts, backward, measured };
    b.tensor("image", ["n", "c", "h", "w"], 1 << 21);
    b.convolution("stem", "image", "a0", 1 << 24, None);
    let mut x = "a0".to_string();
    for (stage, (blocks, bytes)) in [(3, 1u64 << 24), (4, 1 << 23), (6, 1 << 22), (3, 1 << 21)].into_iter().enumerate() {
        for block in 0..blocks {
            let name = |part: &str| format!("{stage}_{block}{part}");
            let mut shortcut = x.clone();
            if block == 0 {
                b.convolution(&name("s"), &x, &format!("short{}", name("")), bytes, None);
                shortcut = format!("short{}", name(""));
            }
            let (one, two, out) = (format!("a{}", name("a")), format!("a{}", name("b")), format!("a{}", name("")));
            b.convolution(&name("a"), &x, &one, bytes / 4, None);
            b.convolution(&name("b"), &one, &two, bytes / 4, None);
            b.convolution(&name("c"), &two, &out, bytes, Some(&shortcut));
            x = out;
        }
    }
    let mut backward = std::mem::take(&mut b.backward);
    let norms = backward.chunks(3).rev().flat_map(<[_]>::to_vec).collect::<Vec<_>>();
    backward.clone_from(&norms);
    for (name, tensors) in backward {
        for (data, _) in &tensors {
            let like = data.strip_prefix("d_").and_then(|of| b.program.tensor(of)).map(|t| (t.natural.clone(), t.bytes));
            if let Some((natural, bytes)) = like {
                let dims: Vec<&str> = natural.pieces.iter().map(|p| p.dim.as_str()).collect();
                b.tensor(data, [dims[0], dims[1], dims[2], dims[3]], bytes);
            }
        }
        b.kernel(&name, Direction::Backward, tensors);
    }
    for data in ["image", x.as_str(), "d_image"] {
        let natural = b.program.tensor(data).expect("declared").natural.clone();
        b.program.boundary.insert(data.to_string(), natural);
    }
    (b.program, b.store)
}
