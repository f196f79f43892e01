//! Whole layers: multi-head attention and the BERT encoder layer, operation by operation.

use crate::builder::Builder;
use crate::difference::{RUN, check, compare, random_tensor, random_tensors, recompute};
use sdfg::interpret::interpret;
use sdfg::{Combine, Role, Scalar};
use transforms::differentiate::{Options, differentiate};

/// Rate of every dropout of the layers.
pub const RATE: f64 = 0.25;

/// `out[ibj]` from `x[ibj]`: projections, scaled scores, softmax, dropout, and the output projection with its bias.
fn attention(builder: &mut Builder, x: &str, out: &str) {
    for (name, time) in [("q", "j"), ("k", "k"), ("v", "k")] {
        let (w, b, full) = (format!("w{name}"), format!("b{name}"), format!("phb{time}"));
        builder.parameter(&w, "phi");
        builder.parameter(&b, "ph");
        let (dot, result) = (format!("{name}{name}.dot"), format!("{name}{name}"));
        builder.contraction((&dot, &full), (&w, "phi"), (x, &format!("ib{time}")), 1.0);
        builder.add((&result, &full), (&dot, &full), (&b, "ph"));
    }
    builder.parameter("wo", "phi");
    builder.parameter("bo", "i");
    builder.contraction(("beta", "hbjk"), ("kk", "phbk"), ("qq", "phbj"), 0.5f64.sqrt());
    builder.softmax(("alpha.softmax", "hbjk"), "beta", "k");
    builder.dropout(("alpha", "hbjk"), "alpha.softmax", RATE);
    builder.contraction(("gamma", "phbj"), ("vv", "phbk"), ("alpha", "hbjk"), 1.0);
    let dot = format!("{out}.dot");
    builder.contraction((&dot, "ibj"), ("wo", "phi"), ("gamma", "phbj"), 1.0);
    builder.add((out, "ibj"), (&dot, "ibj"), ("bo", "i"));
}

pub fn mha() -> Builder {
    let mut builder = Builder::new();
    builder.program.name = "mha".into();
    builder.input("x", "ibj");
    builder.declare("y", "ibj", Role::Output);
    attention(&mut builder, "x", "y");
    builder
}

/// The paper's encoder layer: post-norm, a rectifier or GELU, dropout after softmax, projection and both linear layers.
pub fn encoder(gelu: bool) -> Builder {
    let mut builder = Builder::new();
    builder.program.name = "encoder".into();
    builder.input("x", "ibj");
    builder.declare("y", "ibj", Role::Output);
    attention(&mut builder, "x", "att");
    for (name, dims) in [("g1", "i"), ("c1", "i"), ("w1", "ui"), ("b1", "u"), ("w2", "iu"), ("b2", "i"), ("g2", "i"), ("c2", "i")] {
        builder.parameter(name, dims);
    }
    builder.dropout(("att.drop", "ibj"), "att", RATE);
    builder.add(("res1", "ibj"), ("att.drop", "ibj"), ("x", "ibj"));
    builder.norm(("n1", "ibj"), "res1", "i", Some("g1"), Some("c1"));
    builder.contraction(("s.dot", "ubj"), ("w1", "ui"), ("n1", "ibj"), 1.0);
    builder.add(("s", "ubj"), ("s.dot", "ubj"), ("b1", "u"));
    match gelu {
        true => builder.gelu(("r", "ubj"), "s"),
        false => builder.relu(("r", "ubj"), "s"),
    }
    builder.dropout(("a", "ubj"), "r", RATE);
    builder.contraction(("f.dot", "ibj"), ("w2", "iu"), ("a", "ubj"), 1.0);
    builder.add(("f", "ibj"), ("f.dot", "ibj"), ("b2", "i"));
    builder.dropout(("f.drop", "ibj"), "f", RATE);
    builder.add(("res2", "ibj"), ("f.drop", "ibj"), ("n1", "ibj"));
    builder.norm(("y", "ibj"), "res2", "i", Some("g2"), Some("c2"));
    builder
}

#[test]
fn attention_agrees_with_differences() {
    check(&mha().program, "y", 21);
}

#[test]
fn the_encoder_layer_agrees_with_differences() {
    check(&encoder(false).program, "y", 22);
    check(&encoder(true).program, "y", 23);
}

/// What is recomputed changes no gradient.
#[test]
fn the_encoder_layer_with_recomputation_agrees_with_differences() {
    let program = encoder(false).program;
    let (inputs, upstream) = (random_tensors(&program, 24), random_tensor(&program, 24, "y"));
    let options = Options { upstream: vec!["y".into()], ..Options::default() };
    let (recomputed, _) = recompute(&differentiate(&program, &options).unwrap());
    let mut given = inputs.clone();
    given.insert("d_y".into(), upstream.clone());
    let gradients = interpret(&recomputed, &given, &RUN).unwrap();
    compare(&program, "y", inputs, upstream, &gradients);
}

/// A squared error on top of the layer: the gradient of the loss is 1.
#[test]
fn a_loss_agrees_with_differences() {
    let mut builder = encoder(false);
    builder.input("t", "ibj");
    let error = || Scalar::input("y") - Scalar::input("t");
    builder.reduce(("loss", ""), Combine::Sum, &[("y", "ibj"), ("t", "ibj")], error() * error(), 0.125);
    let program = builder.program;
    let inputs = random_tensors(&program, 25);
    let options = Options { loss: Some("loss".into()), ..Options::default() };
    let gradients = interpret(&differentiate(&program, &options).unwrap(), &inputs, &RUN).unwrap();
    compare(&program, "loss", inputs, ndarray::arr0(1.0).into_dyn(), &gradients);
}
