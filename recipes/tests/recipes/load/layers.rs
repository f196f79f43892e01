//! Layers: the plain expressions that they are read as, and calls that do not fit.

use super::listing::{errors, listing};
use recipes::load::load_str;

/// A recipe with tensors for two-dimensional layers; its first step stands in line 5.
fn recipe(dims: &str, tensors: &str, step: &str) -> String {
    format!("model: m\ndims: {{{dims}}}\ninputs: {{{tensors}}}\nsteps:\n  - \"{step}\"\n")
}

const DIMS: &str = "n: 2, c: 6, h: 9, w: 8, o: 4, r: 3, s: 2, p: (h - 1)/2 + 1, q: w + 1";
const TENSORS: &str = "x: [n, c, h, w], k: [o, c, r, s]";

/// A layer and its plain form are the same program.
fn means(dims: &str, tensors: &str, layer: &str, plain: &str) {
    let program = |step: &str| {
        let recipe = load_str("t.yaml", &recipe(dims, tensors, step), &[]).unwrap_or_else(|errors| panic!("{errors}"));
        listing(&recipe)
    };
    assert_eq!(program(layer), program(plain), "{layer}");
}

#[test]
fn convolutions_are_contractions() {
    means(
        DIMS,
        TENSORS,
        "y[n,o,p,q] = relu(conv(x, k, stride: [2, 1], pad: 1))",
        "y[n,o,p,q] = relu(k[o,c,r,s] * x[n,c,2*p+r-1,q+s-1 else 0])",
    );
    // As many pixels behind as the size of the result takes.
    means(
        "n: 2, c: 6, w: 8, o: 4, s: 3, q: 10",
        "x: [n, c, w], k: [o, c, s]",
        "y[n,o,q] = conv(x, k, dilation: 2, pad: 2, pad_end: 4)",
        "y[n,o,q] = k[o,c,s] * x[n,c,q+2*s-2 else 0]",
    );
    means(
        "n: 1, c: 2, g: 4, h: 5, w: 6, o: 3, t: 2, r: 2, s: 2, z: 3, p: 4, q: 5",
        "x: [n, c, g, h, w], k: [o, c, t, r, s]",
        "y[n,o,z,p,q] = conv(x, k)",
        "y[n,o,z,p,q] = k[o,c,t,r,s] * x[n,c,z+t,p+r,q+s]",
    );
    means(
        "n: 1, c: 6, h: 5, w: 6, r: 3, s: 3",
        "x: [n, c, h, w], k: [c, r, s]",
        "y[n,c,h,w] = conv(x, k, pad: 1)",
        "y[n,c,h,w] = k[c,r,s] * x[n,c,h+r-1,w+s-1 else 0]",
    );
    means(
        "n: 1, c: 6, h: 5, w: 6, f: 2, e: 4, i: 3, r: 3, s: 3",
        "x: [n, c, h, w], k: [f, e, i, r, s]",
        "y[n,f,e,h,w] = conv(x, k, pad: 1, groups: f)",
        "y[n,f,e,h,w] = k[f,e,i,r,s] * x[n,size(i)*f+i,h+r-1,w+s-1 else 0]",
    );
    means(
        "n: 1, c: 6, h: 5, w: 6, o: 3, r: 3, s: 3, p: 2*h - 1, q: 2*w",
        "x: [n, c, h, w], k: [c, o, r, s]",
        "y[n,o,p,q] = conv_transpose(x, k, stride: 2, pad: 1)",
        "y[n,o,p,q] = k[c,o,p+1-2*h,q+1-2*w else 0] * x[n,c,h,w]",
    );
}

#[test]
fn pooling_is_a_reduction() {
    let (dims, tensors) = ("n: 1, c: 2, h: 7, w: 7, r: 3, s: 3, p: 3, q: 3, u: 4, v: 4", "x: [n, c, h, w]");
    means(dims, tensors, "y[n,c,p,q] = maxpool(x, over: [r, s], stride: 2)", "y[n,c,p,q] = max(x[n,c,2*p+r,2*q+s], over: [r, s])");
    // One row and column more than there are whole windows.
    means(
        "n: 1, c: 2, h: 8, w: 8, r: 3, s: 3, u: 4, v: 4",
        tensors,
        "y[n,c,u,v] = maxpool(x, over: [r, s], stride: 2)",
        "y[n,c,u,v] = max(x[n,c,2*u+r,2*v+s else -inf], over: [r, s])",
    );
    means(dims, tensors, "y[n,c,p,q] = avgpool(x, over: [r, s], stride: 2)", "y[n,c,p,q] = mean(x[n,c,2*p+r,2*q+s], over: [r, s])");
    means(
        "n: 1, c: 2, h: 7, r: 3, u: 4",
        "x: [n, c, h]",
        "y[n,c,u] = avgpool(x, over: r, stride: 2, pad: 1)",
        "y[n,c,u] = sum(x[n,c,2*u+r-1 else 0], over: r) / (min(size(r), size(h)-(2*u-1)) - max(0-(2*u-1), 0))",
    );
    means(
        "n: 1, c: 2, h: 7, r: 3, u: 4",
        "x: [n, c, h]",
        "y[n,c,u] = avgpool(x, over: r, stride: 2, pad: 1, count_pad: 1)",
        "y[n,c,u] = sum(x[n,c,2*u+r-1 else 0], over: r) / min(size(r), size(h)+1-(2*u-1))",
    );
    means(dims, tensors, "y[n,c] = globalpool(x)", "y[n,c] = mean(x, over: [h, w])");
}

#[test]
fn parts_are_read_at_shifted_places() {
    means(
        "n: 1, a: 2, b: 3, c: 4, h: 5, o: a + b + c",
        "x: [n, a, h], y: [n, b, h], z: [n, c, h]",
        "t[n,o,h] = concat(x, y, z, along: o)",
        "t[n,o,h] = where(o < size(a), x[n,o,h else 0], where(o < size(a)+size(b), y[n,o-size(a),h else 0], z[n,o-size(a)-size(b),h else 0]))",
    );
    means("n: 1, h: 9, p: 3", "x: [n, h]", "t[n,p] = slice(x, along: h, from: 2, step: 3)", "t[n,p] = x[n,3*p+2]");
    means("n: 1, h: 9, p: 12", "x: [n, h]", "t[n,p] = pad(x, along: h, before: 1, value: 0.5)", "t[n,p] = x[n,p-1 else 0.5]");
    means("n: 1, h: 3, p: 6", "x: [n, h]", "t[n,p] = upsample(x, along: h, by: 2)", "t[n,p] = x[n,floor(p / 2)]");
}

#[test]
fn calls_that_do_not_fit_are_located() {
    for (step, expected) in [
        (
            "y[n,o,p,q] = conv(x, k, stride: 2, pad: 1)",
            "5:19: `q` has 9 places, but a window of 2 over `w` (8) with stride 2 and padding 1 and 1 has 5",
        ),
        (
            "y[n,o,p,q] = conv(x, k, stride: 5, pad: 1)",
            "5:19: `p` has 5 places, but a window of 3 over `h` (9) with stride 5 and padding 1 and 1 has 2",
        ),
        (
            "y[n,c,h,w] = maxpool(x, over: [t, u], stride: 4)",
            "5:19: `h` has 9 places, but a window of 3 over `h` (9) with stride 4 has 2, or 3 where the last one may be cut off",
        ),
        ("y[n,o,p,q] = conv(x, k, dilation: 6)", "5:19: the window `r` reaches over 13, but `h` has 9"),
        ("y[n,o,p,q] = conv(x, k, stride: 0)", "5:38: `stride` is 0; it is at least 1"),
        ("y[n,o,p,q] = conv(x, k, stride: 1.5)", "5:38: `stride` of `conv` is a whole number, or a list of one for each dim"),
        ("y[n,o,p,q] = conv(x, k, pad: [1, 2, 3])", "5:35: `pad` has 3 values, but `conv` moves along 2 dims here"),
        ("y[n,o,p,q] = conv(x, k, strides: 2)", "5:30: `conv` has no option `strides`; did you mean `stride`?"),
        (
            "y[n,o,p] = conv(x, k)",
            "5:17: `conv` has 4 dims here, those of its batch, its channels and 2 of places, but the step's result has 3",
        ),
        ("y[n,o,p,q] = conv(relu(x), k)", "5:24: `conv` reads windows of tensors; give what it reads a step of its own and name that here"),
        ("y[n,o,p,q] = conv(x, kk)", "5:27: unknown tensor `kk`; did you mean `k`?"),
        (
            "y[n,o,p,q] = conv(x, z)",
            "5:27: the kernel `z` sums 4 channels (`o`), but `x` has 6 (`c`); with groups it is [groups, channels of the result, channels of `x` \
             in a group, …]",
        ),
        (
            "y[n,f,e,p,q] = conv(x, g)",
            "5:29: the kernel `g` has a dim of groups, `f`; say `groups: f`, and give the result that dim and one of channels",
        ),
        ("y[n,f,e,p,q] = conv(x, g, groups: f)", "5:29: 3 groups (`f`) of 5 channels (`i`) are 15, but `x` has 6 (`c`)"),
        (
            "y[n,r,p,q] = conv(x, k)",
            "5:27: `r` is summed in the kernel `k` and stands on the left, too; give the kernel's dim another name",
        ),
        (
            "y[n,c,p,q] = maxpool(x)",
            "5:19: `maxpool` takes (x, over: [r, s], stride: 1, pad: 0, dilation: 1): windows with dims of their own over the last dims of x[n, c, h, w]",
        ),
        ("y[n,c,p,q] = maxpool(x, over: [r, v])", "5:40: unknown dim `v`"),
        ("y[n,c,h] = globalpool(x)", ""),
        ("y[n,o,h,w] = concat(x, x, along: o)", "5:39: `o` has 4, but the tensors that are joined along it have 12"),
        ("y[n,o,h,w] = concat(x, x, along: c)", "5:39: tensors are joined along a dim of the result; valid: n, o, h, w"),
        (
            "y[n,o,r,w] = concat(x, x, along: o)",
            "5:26: `h` of `x` (9) and `r` of the result (3) are of different sizes; tensors that are joined differ along `o` alone",
        ),
        ("y[n,c,r,w] = slice(x, along: h, from: 7)", "5:19: the part ends at 9 along `h`, which has 9; give `r` another size"),
        ("y[n,c,r,w] = upsample(x, along: h)", "5:19: `r` has 3, but 2 times `h` (9) is 18"),
    ] {
        let text =
            recipe(&format!("{DIMS}, f: 3, e: 2, i: 5, t: 3, u: 2"), &format!("{TENSORS}, z: [p, o, r, s], g: [f, e, i, t, u]"), step);
        let found = if expected.is_empty() {
            assert!(load_str("t.yaml", &text, &[]).is_ok(), "{step}");
            continue;
        } else {
            errors(&text)
        };
        assert!(found.len() == 1 && found[0].starts_with(&format!("t.yaml:{expected}")), "{step}\n{found:#?}");
    }
}
