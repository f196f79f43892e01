//! Test fixtures: the papers' networks layer by layer, in Caffe's form.

use super::layers::{ImageShape, Layer, LayerGraph, LayerKind, Reach, SlidingWindow};

pub struct Builder {
    graph: LayerGraph,
    norms: bool,
}

pub struct Conv {
    channels: usize,
    window: SlidingWindow,
    groups: usize,
    relu: bool,
}

fn conv(channels: usize, kernel: usize, stride: usize, pad: usize) -> Conv {
    Conv { channels, window: SlidingWindow::square(kernel, stride, pad), groups: 1, relu: true }
}

fn oblong(channels: usize, kernel: (usize, usize), pad: (usize, usize)) -> Conv {
    let window = SlidingWindow { rows: Reach::new(kernel.0, 1, pad.0), columns: Reach::new(kernel.1, 1, pad.1) };
    Conv { channels, window, groups: 1, relu: true }
}

impl Conv {
    fn linear(self) -> Conv {
        Conv { relu: false, ..self }
    }

    fn grouped(self, groups: usize) -> Conv {
        Conv { groups, ..self }
    }
}

fn size(of: usize, reach: Reach) -> usize {
    (of + 2 * reach.pad - reach.kernel) / reach.stride + 1
}

fn size_up(of: usize, reach: Reach) -> usize {
    let up = (of + 2 * reach.pad - reach.kernel).div_ceil(reach.stride) + 1;
    if (up - 1) * reach.stride >= of + reach.pad { up - 1 } else { up }
}

impl Builder {
    pub fn new(name: &str, norms: bool) -> Builder {
        Builder { graph: LayerGraph { name: name.into(), layers: vec![], element_bytes: 4 }, norms }
    }

    pub fn done(self) -> LayerGraph {
        self.graph
    }

    fn shape(&self, of: usize) -> ImageShape {
        self.graph.layers[of].shape
    }

    #[expect(clippy::too_many_arguments, reason = "all that a layer is")]
    pub fn layer(
        &mut self,
        kind: LayerKind,
        inputs: &[usize],
        shape: ImageShape,
        window: SlidingWindow,
        groups: usize,
        weights: u64,
        flop: u64,
    ) -> usize {
        let name = format!("{}{}", kind.label().replace(' ', "_"), self.graph.layers.len());
        self.graph.layers.push(Layer { name, kind, inputs: inputs.to_vec(), shape, window, groups, weights, flop });
        self.graph.layers.len() - 1
    }

    pub fn input(&mut self, channels: usize, rows: usize, columns: usize) -> usize {
        self.layer(LayerKind::Input, &[], ImageShape::new(channels, rows, columns), SlidingWindow::POINT, 1, 0, 0)
    }

    pub fn conv(&mut self, x: usize, c: Conv) -> usize {
        let of = self.shape(x);
        let shape = ImageShape::new(c.channels, size(of.rows, c.window.rows), size(of.columns, c.window.columns));
        let filter = (of.channels / c.groups) as u64 * c.window.taps();
        let bias = if self.norms { 0 } else { c.channels as u64 };
        let flop = 2 * shape.elements() * filter;
        let mut y = self.layer(LayerKind::Convolution, &[x], shape, c.window, c.groups, filter * c.channels as u64 + bias, flop);
        if self.norms {
            for kind in [LayerKind::BatchNorm, LayerKind::Scale] {
                y = self.layer(kind, &[y], shape, SlidingWindow::POINT, 1, 2 * c.channels as u64, 2 * shape.elements());
            }
        }
        if c.relu { self.relu(y) } else { y }
    }

    /// A square convolution that keeps the size but for its stride, with an activation or without.
    pub fn plain(&mut self, x: usize, channels: usize, kernel: usize, stride: usize, relu: bool) -> usize {
        let of = conv(channels, kernel, stride, kernel / 2);
        self.conv(x, if relu { of } else { of.linear() })
    }

    pub fn channels(&self, of: usize) -> usize {
        self.shape(of).channels
    }

    pub fn rows(&self, of: usize) -> usize {
        self.shape(of).rows
    }

    pub fn relu(&mut self, x: usize) -> usize {
        let shape = self.shape(x);
        self.layer(LayerKind::Activation, &[x], shape, SlidingWindow::POINT, 1, 0, shape.elements())
    }

    pub fn pool(&mut self, x: usize, kernel: usize, stride: usize, pad: usize, ceil: bool) -> usize {
        let (of, window) = (self.shape(x), SlidingWindow::square(kernel, stride, pad));
        let size = if ceil { size_up } else { size };
        let shape = ImageShape::new(of.channels, size(of.rows, window.rows), size(of.columns, window.columns));
        self.layer(LayerKind::Pooling, &[x], shape, window, 1, 0, shape.elements() * window.taps())
    }

    pub fn global_pool(&mut self, x: usize) -> usize {
        let of = self.shape(x);
        let window = SlidingWindow { rows: Reach::new(of.rows, 1, 0), columns: Reach::new(of.columns, 1, 0) };
        self.layer(LayerKind::Pooling, &[x], ImageShape::new(of.channels, 1, 1), window, 1, 0, of.elements())
    }

    pub fn add(&mut self, a: usize, b: usize) -> usize {
        let shape = self.shape(a);
        self.layer(LayerKind::Add, &[a, b], shape, SlidingWindow::POINT, 1, 0, shape.elements())
    }

    pub fn concat(&mut self, parts: &[usize]) -> usize {
        let of = self.shape(parts[0]);
        let channels = parts.iter().map(|p| self.shape(*p).channels).sum();
        self.layer(LayerKind::Concat, parts, ImageShape::new(channels, of.rows, of.columns), SlidingWindow::POINT, 1, 0, 0)
    }

    pub fn lrn(&mut self, x: usize) -> usize {
        let shape = self.shape(x);
        self.layer(LayerKind::LocalResponseNorm, &[x], shape, SlidingWindow::POINT, 1, 0, 8 * shape.elements())
    }

    pub fn fc(&mut self, x: usize, outputs: usize) -> usize {
        let of = self.shape(x);
        let window = SlidingWindow { rows: Reach::new(of.rows, 1, 0), columns: Reach::new(of.columns, 1, 0) };
        let weights = of.elements() * outputs as u64;
        self.layer(LayerKind::FullyConnected, &[x], ImageShape::new(outputs, 1, 1), window, 1, weights + outputs as u64, 2 * weights)
    }

    pub fn softmax(&mut self, x: usize) -> usize {
        let shape = self.shape(x);
        self.layer(LayerKind::Softmax, &[x], shape, SlidingWindow::POINT, 1, 0, 3 * shape.elements())
    }
}

pub fn vgg19() -> LayerGraph {
    let mut n = Builder::new("VGG-19", false);
    let mut x = n.input(3, 224, 224);
    for (channels, times) in [(64, 2), (128, 2), (256, 4), (512, 4), (512, 4)] {
        for _ in 0..times {
            x = n.conv(x, conv(channels, 3, 1, 1));
        }
        x = n.pool(x, 2, 2, 0, false);
    }
    for _ in 0..2 {
        let y = n.fc(x, 4096);
        x = n.relu(y);
    }
    let y = n.fc(x, 1000);
    n.softmax(y);
    n.done()
}

/// The first five convolutions and two pools of VGG-E, without parameters.
pub fn vgg_prefix() -> LayerGraph {
    let mut n = Builder::new("VGG-E prefix", false);
    let mut x = n.input(3, 224, 224);
    for (channels, times, pooled) in [(64, 2, true), (128, 2, true), (256, 1, false)] {
        for _ in 0..times {
            x = n.conv(x, conv(channels, 3, 1, 1));
        }
        if pooled {
            x = n.pool(x, 2, 2, 0, false);
        }
    }
    let mut graph = n.done();
    graph.layers.iter_mut().for_each(|l| l.weights = 0);
    graph
}

pub fn googlenet() -> LayerGraph {
    let mut n = Builder::new("GoogLeNet", false);
    let mut x = n.input(3, 224, 224);
    x = n.conv(x, conv(64, 7, 2, 3));
    x = n.pool(x, 3, 2, 0, true);
    x = n.lrn(x);
    x = n.conv(x, conv(64, 1, 1, 0));
    x = n.conv(x, conv(192, 3, 1, 1));
    x = n.lrn(x);
    x = n.pool(x, 3, 2, 0, true);
    let inception = |n: &mut Builder, x: usize, c: [usize; 6]| {
        let a = n.conv(x, conv(c[0], 1, 1, 0));
        let b = n.conv(x, conv(c[1], 1, 1, 0));
        let b = n.conv(b, conv(c[2], 3, 1, 1));
        let d = n.conv(x, conv(c[3], 1, 1, 0));
        let d = n.conv(d, conv(c[4], 5, 1, 2));
        let e = n.pool(x, 3, 1, 1, false);
        let e = n.conv(e, conv(c[5], 1, 1, 0));
        n.concat(&[a, b, d, e])
    };
    for c in [[64, 96, 128, 16, 32, 32], [128, 128, 192, 32, 96, 64]] {
        x = inception(&mut n, x, c);
    }
    x = n.pool(x, 3, 2, 0, true);
    for c in [
        [192, 96, 208, 16, 48, 64],
        [160, 112, 224, 24, 64, 64],
        [128, 128, 256, 24, 64, 64],
        [112, 144, 288, 32, 64, 64],
        [256, 160, 320, 32, 128, 128],
    ] {
        x = inception(&mut n, x, c);
    }
    x = n.pool(x, 3, 2, 0, true);
    for c in [[256, 160, 320, 32, 128, 128], [384, 192, 384, 48, 128, 128]] {
        x = inception(&mut n, x, c);
    }
    x = n.global_pool(x);
    x = n.fc(x, 1000);
    n.softmax(x);
    n.done()
}

pub fn inception_v3() -> LayerGraph {
    let mut n = Builder::new("Inception v3", true);
    let mut x = n.input(3, 299, 299);
    for c in [conv(32, 3, 2, 0), conv(32, 3, 1, 0), conv(64, 3, 1, 1)] {
        x = n.conv(x, c);
    }
    x = n.pool(x, 3, 2, 0, false);
    for c in [conv(80, 1, 1, 0), conv(192, 3, 1, 0)] {
        x = n.conv(x, c);
    }
    x = n.pool(x, 3, 2, 0, false);
    fn chain(n: &mut Builder, mut x: usize, convs: Vec<Conv>) -> usize {
        for c in convs {
            x = n.conv(x, c);
        }
        x
    }
    for pooled in [32, 64, 64] {
        let b = chain(&mut n, x, vec![conv(48, 1, 1, 0), conv(64, 5, 1, 2)]);
        let c = chain(&mut n, x, vec![conv(64, 1, 1, 0), conv(96, 3, 1, 1), conv(96, 3, 1, 1)]);
        let a = n.conv(x, conv(64, 1, 1, 0));
        let p = n.pool(x, 3, 1, 1, false);
        let p = n.conv(p, conv(pooled, 1, 1, 0));
        x = n.concat(&[a, b, c, p]);
    }
    let a = n.conv(x, conv(384, 3, 2, 0));
    let b = chain(&mut n, x, vec![conv(64, 1, 1, 0), conv(96, 3, 1, 1), conv(96, 3, 2, 0)]);
    let p = n.pool(x, 3, 2, 0, false);
    x = n.concat(&[a, b, p]);
    let (wide, high) = (|c| oblong(c, (1, 7), (0, 3)), |c| oblong(c, (7, 1), (3, 0)));
    for c in [128, 160, 160, 192] {
        let a = chain(&mut n, x, vec![conv(c, 1, 1, 0), wide(c), high(192)]);
        let b = chain(&mut n, x, vec![conv(c, 1, 1, 0), high(c), wide(c), high(c), wide(192)]);
        let d = n.conv(x, conv(192, 1, 1, 0));
        let p = n.pool(x, 3, 1, 1, false);
        let p = n.conv(p, conv(192, 1, 1, 0));
        x = n.concat(&[d, a, b, p]);
    }
    let a = chain(&mut n, x, vec![conv(192, 1, 1, 0), conv(320, 3, 2, 0)]);
    let b = chain(&mut n, x, vec![conv(192, 1, 1, 0), wide(192), high(192), conv(192, 3, 2, 0)]);
    let p = n.pool(x, 3, 2, 0, false);
    x = n.concat(&[a, b, p]);
    for _ in 0..2 {
        let t = n.conv(x, conv(384, 1, 1, 0));
        let u = chain(&mut n, x, vec![conv(448, 1, 1, 0), conv(384, 3, 1, 1)]);
        let d = n.conv(x, conv(320, 1, 1, 0));
        let mut parts = vec![d];
        for from in [t, u] {
            parts.push(n.conv(from, oblong(384, (1, 3), (0, 1))));
            parts.push(n.conv(from, oblong(384, (3, 1), (1, 0))));
        }
        let p = n.pool(x, 3, 1, 1, false);
        parts.push(n.conv(p, conv(192, 1, 1, 0)));
        x = n.concat(&parts);
    }
    x = n.global_pool(x);
    x = n.fc(x, 1000);
    n.softmax(x);
    n.done()
}

pub fn resnet(depth: usize) -> LayerGraph {
    let mut n = Builder::new(&format!("ResNet-{depth}"), true);
    let mut x = n.input(3, 224, 224);
    x = n.conv(x, conv(64, 7, 2, 3));
    x = n.pool(x, 3, 2, 1, false);
    let times = if depth == 18 { [2, 2, 2, 2] } else { [3, 4, 6, 3] };
    for (stage, blocks) in times.into_iter().enumerate() {
        let c = 64 << stage;
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            let wide = if depth == 18 { c } else { 4 * c };
            let shortcut = if block == 0 { n.conv(x, conv(wide, 1, stride, 0).linear()) } else { x };
            let y = if depth == 18 {
                let y = n.conv(x, conv(c, 3, stride, 1));
                n.conv(y, conv(c, 3, 1, 1).linear())
            } else {
                let y = n.conv(x, conv(c, 1, stride, 0));
                let y = n.conv(y, conv(c, 3, 1, 1));
                n.conv(y, conv(wide, 1, 1, 0).linear())
            };
            let y = n.add(shortcut, y);
            x = n.relu(y);
        }
    }
    x = n.global_pool(x);
    x = n.fc(x, 1000);
    n.softmax(x);
    n.done()
}

/// SqueezeNet 1.0, or 1.1.
pub fn squeezenet(newer: bool) -> LayerGraph {
    let mut n = Builder::new(if newer { "SqueezeNet 1.1" } else { "SqueezeNet 1.0" }, false);
    let mut x = n.input(3, 227, 227);
    x = n.conv(x, if newer { conv(64, 3, 2, 0) } else { conv(96, 7, 2, 0) });
    x = n.pool(x, 3, 2, 0, true);
    let fires: &[&[(usize, usize)]] = if newer {
        &[&[(16, 64), (16, 64)], &[(32, 128), (32, 128)], &[(48, 192), (48, 192), (64, 256), (64, 256)]]
    } else {
        &[&[(16, 64), (16, 64), (32, 128)], &[(32, 128), (48, 192), (48, 192), (64, 256)], &[(64, 256)]]
    };
    for (at, stage) in fires.iter().enumerate() {
        if at > 0 {
            x = n.pool(x, 3, 2, 0, true);
        }
        for (squeezed, expanded) in *stage {
            x = n.conv(x, conv(*squeezed, 1, 1, 0));
            let (a, b) = (n.conv(x, conv(*expanded, 1, 1, 0)), n.conv(x, conv(*expanded, 3, 1, 1)));
            x = n.concat(&[a, b]);
        }
    }
    x = n.conv(x, conv(1000, 1, 1, 0));
    x = n.global_pool(x);
    n.softmax(x);
    n.done()
}

pub fn mobilenet_v1() -> LayerGraph {
    let mut n = Builder::new("MobileNet v1", true);
    let mut x = n.input(3, 224, 224);
    x = n.conv(x, conv(32, 3, 2, 1));
    let mut channels = 32;
    let rest = [(512, 1); 5];
    for (to, stride) in [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)].into_iter().chain(rest).chain([(1024, 2), (1024, 1)]) {
        x = n.conv(x, conv(channels, 3, stride, 1).grouped(channels));
        x = n.conv(x, conv(to, 1, 1, 0));
        channels = to;
    }
    x = n.global_pool(x);
    x = n.fc(x, 1000);
    n.softmax(x);
    n.done()
}

/// The five networks of the paper.
pub fn papers() -> Vec<LayerGraph> {
    vec![vgg19(), googlenet(), inception_v3(), resnet(18), resnet(50)]
}
