//! Blocks: what they are written out as, and errors that name the instance.

use super::listing::{errors, listing};
use recipes::load::load_str;

/// A recipe with these blocks and steps, of which the first step stands in line 24.
fn recipe(steps: &[&str]) -> String {
    let steps: String = steps.iter().map(|step| format!("  - \"{step}\"\n")).collect();
    format!(
        "model: test
dims: {{b: 2, i: 5, u: i}}
constants: {{wide: 4}}
inputs: {{x: [b, i]}}
parameters: {{g: [i]}}
blocks:
  dense:
    dims: {{o: }}
    constants: {{slope: 1}}
    inputs: {{x: [n, c]}}
    parameters:
      w: [o, c]
      bias: {{dims: [o], range: [0, 1]}}
    steps:
      - \"s[n,o] = w[o,c] * x[n,c]\"
      - \"y[n,o] = max(s + bias, slope * s[n,o])\"
  residual:
    dims: {{m: 3}}
    inputs: {{x: [n, c]}}
    steps:
      - \"r = dense(x, o: 2*m)\"
      - \"e = dense(r, o: c, slope: -1)\"
      - \"y[n,c] = x + e[n,c]\"
steps:
{steps}"
    )
}

fn written_out(steps: &[&str]) -> Vec<String> {
    let text = recipe(steps);
    listing(&load_str("t.yaml", &text, &[]).unwrap_or_else(|errors| panic!("{errors}")))
}

#[test]
fn an_instance_has_names_of_its_own() {
    assert_eq!(
        written_out(&["a = dense(x, o: 7)", "z[b,a_o] = a + a_bias"]),
        [
            "a_s[b,a_o] = contraction: 1 <- a=a_w[a_o,i] b=x[b,i]",
            "a[b,a_o] = map: Max((a + b), a) <- a=a_s[b,a_o] b=a_bias[a_o]",
            "z[b,a_o] = bias: (a + b) <- a=a[b,a_o] b=a_bias[a_o]",
        ]
    );
}

#[test]
fn blocks_use_blocks_and_sizes_that_are_made_of_theirs() {
    let text = recipe(&["a = residual(x, m: 4)"]);
    let recipe = load_str("t.yaml", &text, &[]).unwrap();
    let sizes: Vec<String> = recipe.program.dims.iter().map(|(dim, size)| format!("{dim}: {size}")).collect();
    assert_eq!(sizes, ["b: B", "i: I", "u: I", "a_m: A_M", "a_r_o: 2*A_M", "a_e_o: I"]);
    let last = listing(&recipe).pop();
    // The tensor of the other dense layer is read by the names of this block's dims.
    assert_eq!(last.as_deref(), Some("a[b,i] = residual: (a + b) <- a=x[b,i] b=a_e[b,i]"));
}

#[test]
fn a_block_is_repeated_on_its_own_result() {
    let names = |steps: &[&str]| -> Vec<String> {
        let lines = written_out(steps);
        lines.iter().filter(|line| line.contains("contraction")).map(|line| line.split(" = ").next().unwrap().to_string()).collect()
    };
    assert_eq!(names(&["a = dense(x, o: i, repeat: 3)"]), ["a_1_s[b,a_1_o]", "a_2_s[b,a_2_o]", "a_3_s[b,a_3_o]"]);
    assert_eq!(names(&["a = dense(x, o: [7, 2*wide, i])", "z = dense(a, o: 2)"]).last().unwrap(), "z_s[b,z_o]");
    let lines = written_out(&["a = dense(x, o: [7, 2*wide])", "z = dense(a, o: 2)"]);
    assert_eq!(lines[2], "a_2_s[b,a_2_o] = contraction: 1 <- a=a_2_w[a_2_o,a_1_o] b=a_1[b,a_1_o]");
    assert!(lines[4].ends_with("b=a[b,a_2_o]"), "{lines:?}");
}

#[test]
fn sizes_of_instances_can_be_set() {
    let text = recipe(&["a = dense(x, o: 7)"]);
    let recipe = load_str("t.yaml", &text, &[("a_o".to_string(), 3)]).unwrap();
    assert_eq!(recipe.program.sizes["A_O"], 3);
}

fn check(steps: &[&str], expected: &[&str]) {
    assert_eq!(errors(&recipe(steps)), expected, "{steps:?}");
}

#[test]
fn uses_that_do_not_fit_are_located() {
    check(&["a = dense(x)"], &["t.yaml:25:10: `dense` needs the size `o`, as in `… = dense(x, o: …)`"]);
    check(&["a = dense(x, u: 4)"], &["t.yaml:25:19: `dense` has no option `u`; valid: `o`, `slope`, `repeat`"]);
    check(&["a = dense(x, o: 4, o: 5)"], &["t.yaml:25:25: the option `o` is given twice"]);
    check(&["a = dense(o: 4)"], &["t.yaml:25:10: `dense` needs one tensor, as in `… = dense(x, o: …)`"]);
    check(&["a = dense(xx, o: 4)"], &["t.yaml:25:16: unknown tensor `xx`; did you mean `x`?"]);
    check(
        &["a = dense(g, o: 4)"],
        &["t.yaml:25:16: the input `x` of `dense` has the axes [n, c], but those of `g` are [i]; give a tensor with as many"],
    );
    check(
        &["a[b,i] = relu(dense(x, o: i))"],
        &[
            "t.yaml:25:20: the block `dense` stands alone in a step that names its result without dims, `NAME = dense(TENSOR, …)`; its result \
             has dims of its own",
        ],
    );
    check(
        &["a = dense(relu(x), o: i)"],
        &[
            "t.yaml:25:16: `dense` takes names of tensors and then options, `dense(TENSOR, …, OPTION: VALUE, …)`; give what is computed a step \
             of its own",
        ],
    );
    check(&["a = dense(x, o: 4, repeat: 0)"], &["t.yaml:25:33: `repeat` is a whole number from 1, such as 3"]);
    check(
        &["a = dense(x, o: [4, 5], slope: [1, 2, 3])"],
        &["t.yaml:25:30: `o` makes 2 instances and `slope` 3; a list has one value for each, so give all of them as many"],
    );
    check(
        &["a = dense(x, o: 4, slope: size(i))"],
        &[
            "t.yaml:25:32: the constant `slope` of `dense` is a number, or an expression of whole numbers in which `/` rounds down, such as \
           (k - 1) / 2",
        ],
    );
    check(&["a = dense(x, o: 0)"], &["t.yaml:25:22: the size of `a_o` is 0; a size is at least 1"]);
    check(
        &["z[b,i] = x", "z = dense(x, o: i)"],
        &[
            "t.yaml:16:10: in `z` (`dense`, line 26): `z` is already assigned at line 25; each tensor is assigned once, so give this one another name",
        ],
    );
}

/// The errors of a recipe whose only block is `mix`, with these lines.
fn errors_of_block(lines: &[&str], step: &str) -> Vec<String> {
    let lines: String = lines.iter().map(|line| format!("    {line}\n")).collect();
    errors(&format!(
        "model: test\ndims: {{b: 2, i: 5, u: 4}}\ninputs: {{x: [b, i], z: [b, u]}}\nblocks:\n  mix:\n{lines}steps:\n  - \"{step}\"\n"
    ))
}

#[test]
fn errors_in_blocks_name_their_lines_and_the_instance() {
    let block = |step: &str| errors_of_block(&["inputs: {x: [n, c]}", "parameters: {w: [c]}", "steps:", step], "a = mix(x)");
    assert_eq!(block("- y[n,c] = relu(x) * ww[c]"), ["t.yaml:9:26: unknown name `ww` in the block `mix`; did you mean `w`?"]);
    assert_eq!(
        block("- y[n,c] = relu(x) * w[n]"),
        [
            "t.yaml:9:28: in `a` (`mix`, line 11): axis 1 of `a_w` has the size of `i`, but the index `b` runs over another size; write `b: i` in dims if they are always equal"
        ]
    );
    assert_eq!(
        block("- y[n,c] = relu(x) **"),
        ["t.yaml:9:25: in `a` (`mix`, line 11): an expression was expected, but `*` stands here; there is no `**`: write `pow(x, 2)`"]
    );
    assert_eq!(
        block("- y[n,c] = max(x, ovr: c)"),
        ["t.yaml:9:23: in `a` (`mix`, line 11): `max` has no option `ovr`; did you mean `over`?"]
    );
    // Reported once, for the first of several instances.
    let twice = errors_of_block(&["inputs: {x: [n, c]}", "steps:", "- y[n,c] = sofmax(x, over: c)"], "a = mix(x, repeat: 4)");
    assert_eq!(twice, ["t.yaml:8:16: in `a_1` (`mix`, line 10): unknown operator `sofmax`; did you mean `softmax`?"]);
    // Two inputs that share the names of dims have the same sizes.
    let two = errors_of_block(&["inputs: {x: [n, c], z: [n, c]}", "steps:", "- y[n,c] = x + z"], "a = mix(x, z)");
    assert_eq!(
        two,
        [
            "t.yaml:8:20: in `a` (`mix`, line 10): axis 2 of `z` has the size of `u`, but the index `i` runs over another size; write `i: u` in dims if they are always equal"
        ]
    );
}

#[test]
fn blocks_that_are_none_are_refused() {
    for (lines, step, expected) in [
        (&["inputs: {x: [n, c]}"][..], "a = mix(x)", "t.yaml:5:3: the block `mix` must be a mapping with at least one step in `steps`"),
        (&["input: {x: [n, c]}"], "a = mix(x)", "t.yaml:6:5: unknown key `input`; did you mean `inputs`?"),
        (
            &["inputs: {x: [n, c]}", "dims: {n: 3}", "steps: [\"y[n,c] = x\"]"],
            "a = mix(x)",
            "t.yaml:6:18: `n` is already declared at line 7; give one of the two another name",
        ),
        (
            &["inputs: {x: [n, c]}", "steps: [\"y[n,c] = x\", \"z[n,c] = x\"]"],
            "a = mix(x)",
            "t.yaml:5:3: the block `mix` has 2 results that none of its steps reads (`y`, `z`); name its result in `outputs: […]`",
        ),
        (
            &["inputs: {x: [n, c]}", "steps: [\"y = mix(x)\"]"],
            "a = mix(x)",
            "t.yaml:5:3: the blocks `mix` use each other, so none of them ends; a block may use others that do not use it",
        ),
        (
            &["inputs: {x: [n, c]}", "dims: {repeat: 3}", "steps: [\"y[n,c] = x\"]"],
            "a = mix(x)",
            "t.yaml:7:12: `repeat` cannot be a name: every use of a block has an option `repeat`",
        ),
    ] {
        assert_eq!(errors_of_block(lines, step), [expected], "{lines:?}");
    }
    let named = "model: t\ndims: {b: 2}\ninputs: {x: [b]}\nblocks:\n  softmax:\n    inputs: {x: [n]}\n    steps: [\"y[n] = x\"]\nsteps:\n  - y[b] = x\n";
    assert_eq!(errors(named), ["t.yaml:5:3: the block `softmax` has the name of an operator; give it another one"]);
}

#[test]
fn expansions_are_bounded() {
    let mut blocks = String::from("  b0:\n    inputs: {x: [n]}\n    steps: [\"y[n] = relu(x)\"]\n");
    for n in 1..12 {
        blocks.push_str(&format!("  b{n}:\n    inputs: {{x: [n]}}\n    steps: [\"y = b{}(x, repeat: 9)\"]\n", n - 1));
    }
    let text = format!("model: t\ndims: {{b: 2}}\ninputs: {{x: [b]}}\nblocks:\n{blocks}steps:\n  - \"y = b11(x)\"\n");
    assert!(errors(&text)[0].contains("4097 instances of blocks; at most 4096"), "{:?}", errors(&text));
}

#[test]
fn a_block_that_no_step_uses_is_noted() {
    let recipe = load_str("t.yaml", &recipe(&["a = dense(x, o: 4)"]), &[]).unwrap();
    let notes: Vec<String> = recipe.unread.iter().map(ToString::to_string).collect();
    assert_eq!(
        notes,
        [
            "t.yaml:5:14: `g` is read by no step; remove it if that is not meant",
            "t.yaml:17:3: the block `residual` is used by no step; remove it if that is not meant",
        ]
    );
}
