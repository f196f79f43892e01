//! Bad recipes: each fails with located sentences that say what to do.

use super::listing::{errors, with_steps};

fn check(text: &str, expected: &[&str]) {
    assert_eq!(errors(text), expected, "for\n{text}");
}

#[test]
fn steps_that_fail() {
    let cases: &[(&[&str], &[&str])] = &[
        (
            &["a[u] = w[u,i] * g[i]", "a[u] = c[u]"],
            &["t.yaml:13:5: `a` is already assigned at line 12; each tensor is assigned once, so give this one another name"],
        ),
        (&["a[u] = z[u]", "z[u] = c[u]"], &["t.yaml:12:12: `z` is assigned later, at line 13; move that step up"]),
        (
            &["a[u] = z[u]", "z[u] = a[u]"],
            &[
                "t.yaml:12:12: the steps `z` (line 13), `a` (line 12) need each other: this is a cycle; a step may only read what steps above it assign",
            ],
        ),
        (
            &["a[u] = a[u]"],
            &["t.yaml:12:12: the steps `a` (line 12) need each other: this is a cycle; a step may only read what steps above it assign"],
        ),
        (&["x[i] = g[i]"], &["t.yaml:12:5: `x` is already declared at line 5; give one of the two another name"]),
        (&["half[i] = g[i]"], &["t.yaml:12:5: `half` is already declared at line 3; give one of the two another name"]),
        (&["a[i] = gg[i]"], &["t.yaml:12:12: unknown tensor `gg`; did you mean `g`?"]),
        (&["a[i] = sofmax(g, over: i)"], &["t.yaml:12:12: unknown operator `sofmax`; did you mean `softmax`?"]),
        (
            &["a[i] = variance(g, over: i)"],
            &["t.yaml:12:12: unknown operator `variance`; write `mean(pow(x - mean(x, over: i), 2), over: i)`"],
        ),
        (&["a[i] = g[i]^2"], &["t.yaml:12:16: there is no `^`: write `pow(x, 2)`"]),
        (
            &["a[i] = where(g > 0 and g < 1, g, 0)"],
            &[
                "t.yaml:12:24: `,` was expected (between arguments, or `)` after the last one), but `and` stands here; conditions are 1 or 0: \
               `(x > 0) * (x < 1)` is both, `max(x > 0, y > 0)` one of them, `1 - (x > 0)` neither",
            ],
        ),
        (
            &["a[u] = (w[u,i] * g[i] + c[u]) * sigmoid(w[u,i] * g[i])"],
            &["t.yaml:12:13: the index `i` may be meant to be summed in this product, or in a part of it alone; write `sum(…, over: i)` \
                 where it is"],
        ),
        (
            &["a[u] = w[u,i] * g[i] / (g[i] * g[i])"],
            &["t.yaml:12:12: the index `i` may be meant to be summed in this product, or in a part of it alone; write `sum(…, over: i)` \
                 where it is"],
        ),
        (&["a[i] = softmax(g, ovr: i)"], &["t.yaml:12:23: `softmax` has no option `ovr`; did you mean `over`?"]),
        (
            &["a[i] = cross_entropy(w, w, over: u)"],
            &["t.yaml:12:38: the label of a `cross_entropy` over `u` has the index `u` itself; it is one number for each row of classes"],
        ),
        (
            &["a = cross_entropy(w, g, over: [u, i])"],
            &[
                "t.yaml:12:9: `cross_entropy` takes (score, label, over: c): the scores of all classes along c, and the number of the right one",
            ],
        ),
        (&["a[i] = logsoftmax(g, over: i)"], &["t.yaml:12:12: unknown operator `logsoftmax`; it is called `log_softmax`"]),
        (&["a[i] = softmax(g)"], &["t.yaml:12:12: `softmax` takes (x, over: k)"]),
        (&["a[i] = softmax(g, over: u)"], &["t.yaml:12:29: nothing in `softmax` has the index `u`; valid: `i`"]),
        (&["a[i] = dropout(g, rate: 1)"], &["t.yaml:12:29: the rate is 1; a dropout rate is at least 0 and below 1"]),
        (&["a[i] = dropout(g, rate: -0.1)"], &["t.yaml:12:29: the rate is -0.1; a dropout rate is at least 0 and below 1"]),
        (
            &["a[i] = dropout(g, rate: c)"],
            &[
                "t.yaml:12:29: the index `u` occurs only once in this product and not on the left; write `sum(…, over: u)` if a sum is meant",
            ],
        ),
        (
            &["a[i] = dropout(g, rate: c[u])"],
            &[
                "t.yaml:12:29: the index `u` occurs only once in this product and not on the left; write `sum(…, over: u)` if a sum is meant",
            ],
        ),
        (
            &["a[i,i] = g[i]"],
            &[
                "t.yaml:12:9: the index `i` stands twice in `a`; a step assigns a whole tensor, so write `a[i,i2] = where(i == i2, …, 0)`, with \
               `i2: i` in dims",
            ],
        ),
        (
            &["a[u] = w[u,u]"],
            &[
                "t.yaml:12:16: axis 2 of `w` has the size of `i`, but the index `u` runs over another size; write `u: i` in dims if they are always equal",
            ],
        ),
        (&["a[b,j,u] = s[b,j]"], &["t.yaml:12:16: `s` has 3 axes [b, j, k], but 2 are given"]),
        (&["a[u,i] = w[i,u]"], &["t.yaml:12:14: the axes of `w` are [u, i], and [i, u] is another order of them; did you mean `w[u,i]`?"]),
        (
            &["a[i,k,b] = x[b,i,k]"],
            &["t.yaml:12:16: the axes of `x` are [i, b, j], and [b, i, k] is another order of them; did you mean `x[i,b,k]`?"],
        ),
        (
            &["a[i] = w[i,i] * c[i]"],
            &[
                "t.yaml:12:14: axis 1 of `w` has the size of `u`, but the index `i` runs over another size; write `i: u` in dims if they are always equal",
                "t.yaml:12:23: axis 1 of `c` has the size of `u`, but the index `i` runs over another size; write `i: u` in dims if they are always equal",
            ],
        ),
        (
            &["a[i] = g[i] * k"],
            &["t.yaml:12:19: the index `k` is used as a number, but nothing here runs over it; put it on the left or in an operand"],
        ),
        (
            &["a[u] = sum(c[u], over: u)"],
            &[
                "t.yaml:12:7: the index `u` stands on the left, but nothing on the right has it, or it is reduced there; remove it, or use it on the right",
            ],
        ),
        (
            &["a = sum(g, over: [i, i])"],
            &["t.yaml:12:26: the index `i` stands twice in `over`; use two dims of equal size, such as `k: i`"],
        ),
        (&["a[i] = g[i"], &["t.yaml:12:14: `,` was expected (between indices, or `]` after the last one), but the step ends here"]),
        (&["a[i] = g[i] +"], &["t.yaml:12:17: an expression was expected, but the step ends here"]),
        (&["a[i] g[i]"], &["t.yaml:12:10: `=` was expected (a step reads `name[index, …] = expression`), but `g` stands here"]),
        (&["[i] = g"], &["t.yaml:12:9: this is not valid YAML: while parsing a block collection, did not find expected '-' indicator"]),
        (&["a[i] = g[i] $ 2"], &["t.yaml:12:17: the character '$' has no meaning in a step"]),
        (&["a[i] = g[i] ** 2"], &["t.yaml:12:18: an expression was expected, but `*` stands here; there is no `**`: write `pow(x, 2)`"]),
        (&["a[i] = g[i] // 2"], &["t.yaml:12:18: an expression was expected, but `/` stands here; there is no `//`: write `floor(x / y)`"]),
        (
            &["a[i] = g[i] @ g[i]"],
            &["t.yaml:12:17: there is no `@`: write the indices of a product, `a[i,k] * b[k,j]`; what the left side lacks is summed"],
        ),
        (&["a[i] = g[i] % 2"], &["t.yaml:12:17: there is no `%`: write `x - y * floor(x / y)`"]),
        (
            &["a[i] = (g[i] > 0) & (g[i] < 1)"],
            &["t.yaml:12:23: conditions are 1 or 0: `(x > 0) * (x < 1)` is both, `max(x > 0, y > 0)` one of them"],
        ),
        (
            &["a = sum(g, axis=0)"],
            &[
                "t.yaml:12:20: `,` was expected (between arguments, or `)` after the last one), but `=` stands here; what is reduced is named, with a colon: `sum(x, over: j)`",
            ],
        ),
        (
            &["a[i] = layernorm(g, over: i, eps=1e-5)"],
            &[
                "t.yaml:12:37: `,` was expected (between arguments, or `)` after the last one), but `=` stands here; options have a colon, as in `layernorm(x, over: i, eps: 1e-5)`",
            ],
        ),
        (&["a[i] = 1e999"], &["t.yaml:12:12: the number `1e999` is too large; write inf if infinity is meant"]),
        (&["a[i] = (g[i]"], &["t.yaml:12:16: `)` was expected (it closes the bracket), but the step ends here"]),
        (&["d_a[i] = g[i]"], &["t.yaml:12:5: `d_a` cannot be a name: `d_` is reserved for gradients"]),
        (&["a.b[i] = g[i]"], &["t.yaml:12:5: `a.b` cannot be a name: a name is a letter or `_`, then letters, digits and `_`"]),
        (&["système[i] = g[i]"], &["t.yaml:12:5: `système` cannot be a name: a name is a letter or `_`, then letters, digits and `_`"]),
        (&["a[i] = max(g)"], &["t.yaml:12:12: `max` takes two operands, or (x, over: i)"]),
        (&["a[i] = gelu(g, form: elf)"], &["t.yaml:12:12: `gelu` takes (x), (x, form: erf) or (x, form: tanh)"]),
        (&["a[i] = where(g, 1)"], &["t.yaml:12:12: `where` takes three operands: condition, value if true, value if not"]),
        (&["a[i] = g[i] * size(q)"], &["t.yaml:12:24: unknown dim `q`; valid: `b`, `j`, `k`, `i`, `u`, `p`"]),
        (
            &["a[i] = layernorm(g, over: i, eps: -1)"],
            &["t.yaml:12:39: `eps` is -1; it is a finite number that is at least 0, such as 1e-5"],
        ),
        (
            &["a[i] = layernorm(g, over: i, eps: inf)"],
            &["t.yaml:12:39: `eps` is inf; it is a finite number that is at least 0, such as 1e-5"],
        ),
        (
            &["a[i] = layernorm(g, over: i, scale: c[u])"],
            &[
                "t.yaml:12:41: the index `u` occurs only once in this product and not on the left; write `sum(…, over: u)` if a sum is meant",
            ],
        ),
        (&["\"a[i] = gg[i]\""], &["t.yaml:12:13: unknown tensor `gg`; did you mean `g`?"]),
        (
            &[">-\n      a[i] =\n        gg[i] + sofmax(g, over: i)"],
            &["t.yaml:14:9: unknown tensor `gg`; did you mean `g`?", "t.yaml:14:17: unknown operator `sofmax`; did you mean `softmax`?"],
        ),
        (&["a: 5"], &["t.yaml:12:6: `=` was expected (a step reads `name[index, …] = expression`), but `:` stands here"]),
        (&["5"], &["t.yaml:12:5: a step must be a text; put `5` in quotes if it is one"]),
    ];
    for (steps, expected) in cases {
        check(&with_steps(steps), expected);
    }
}

#[test]
fn headers_that_fail() {
    let cases: &[(&str, &[&str])] = &[
        (
            "model: m\ndims: {i: 0}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:2:11: the size of `i` is 0; a size is at least 1"],
        ),
        (
            "model: m\ndims: {i: -3}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:2:11: the size of `i` is -3; a size is at least 1"],
        ),
        (
            "model: m\ndims: {i: 99999999999999999999}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:2:11: the size of `i` has no value: it is a whole number from 1 to 2^62, but here stands 99999999999999999999"],
        ),
        (
            "model: m\ndims: {i: 4611686018427387904, j: 2}\ninputs: {x: [i], z: [i,j]}\nsteps: [\"y[i] = x[i]\"]\n",
            &[
                "t.yaml:3:10: `x` has more than 2^62 elements or bytes under these sizes; use smaller sizes",
                "t.yaml:3:18: `z` has more than 2^62 elements or bytes under these sizes; use smaller sizes",
                "t.yaml:4:10: `y` has more than 2^62 elements or bytes under these sizes; use smaller sizes",
            ],
        ),
        (
            "model: m\ndims: {i: j, j: 2*i}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:2:11: the sizes of the dims `i`, `j` are defined by each other; give one of them a number"],
        ),
        ("model: m\ndims: {i: 2*q}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n", &["t.yaml:2:11: unknown dim `q`; valid: `i`"]),
        (
            "model: m\ndims: {i: 2.5}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:2:11: the size of `i` has no value: it is a whole number from 1 to 2^62, but here stands 2.5"],
        ),
        (
            "model: m\ndims: {i: 1e3}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:2:11: the size of `i` has no value: write it without point or exponent, as 1000"],
        ),
        (
            "model: m\ndims: {i: .nan}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:2:11: the size of `i` has no value: it is a whole number from 1 to 2^62, but here stands .nan"],
        ),
        (
            "model: m\ndims: {i: 2}\nsteps: [\"y[i] = x[i]\"]\n---\nmodel: n\n",
            &["t.yaml:5:1: this is not valid YAML: a second document begins here; a recipe is one, without `---` in it"],
        ),
        (
            "model: m\ndims: {i: [2]}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:2:11: the size of `i` must be an integer, another dim, or an expression such as 4*i"],
        ),
        (
            "model: m\ndims: {i: 2}\ninput: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:3:1: unknown key `input`; did you mean `inputs`?", "t.yaml:4:17: unknown tensor `x`"],
        ),
        ("dims: {i: 2}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n", &["t.yaml:1:1: the recipe has no `model`; add it"]),
        ("model: m\ndims: {i: 2}\ninputs: {x: [i, jj]}\nsteps: [\"y[i] = x[i]\"]\n", &["t.yaml:3:17: unknown dim `jj`; valid: `i`"]),
        (
            "model: m\ndims: {i: 2}\ninputs: {x: i}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:3:13: the tensor `x` must be a list of dims, such as [i, b, j]"],
        ),
        (
            "model: m\ndims: {i: 2}\ninputs: {x: {dim: [i], grad: false}}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:3:13: the recipe has no `dims` of `x`; add it", "t.yaml:3:14: unknown key `dim`; did you mean `dims`?"],
        ),
        (
            "model: m\ndims: {i: 2}\ninputs: {x: [i]}\nparameters: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:4:14: `x` is already declared at line 3; give one of the two another name"],
        ),
        (
            "model: m\ndims: {i: 2}\ninputs: {x: [i], x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:3:18: this is not valid YAML: duplicate mapping key: x"],
        ),
        (
            "model: m\ndims: {i: 2}\ndtype: f31\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:3:8: unknown element type `f31`; did you mean `f32`?"],
        ),
        (
            "model: m\ndims: {i: 2}\ninputs: {x: [i]}\noutputs: [x]\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:4:11: `x` is no result of a step; valid: `y`"],
        ),
        (
            "model: m\ndims: {i: 2}\ninputs: {x: [i]}\ntrain: {upstream: yy}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:4:19: `yy` is no result of a step; did you mean `y`?"],
        ),
        (
            "model: m\ndims: {i: 2}\ninputs: {x: [i]}\ntrain: {loss: y}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:4:15: the loss `y` has the axes [i]; a loss has none, so reduce them with sum or mean"],
        ),
        (
            "model: m\ndims: {i: 2}\ninputs: {x: [i]}\ntrain: {loss: y, upstream: y}\nsteps: [\"y[i] = x[i]\"]\n",
            &[
                "t.yaml:4:8: `train` names both an upstream gradient and a loss; choose one",
                "t.yaml:4:15: the loss `y` has the axes [i]; a loss has none, so reduce them with sum or mean",
            ],
        ),
        (
            "model: m\ndims: {i: 2}\ninputs: {x: [i]}\ntrain: {up: y}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:4:9: unknown key `up`; did you mean `upstream`?"],
        ),
        (
            "model: m\ndims: {i: 2}\ninputs: {\"x;system(1)\": [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &[
                "t.yaml:3:10: `x;system(1)` cannot be a name: a name is a letter or `_`, then letters, digits and `_`",
                "t.yaml:4:17: unknown tensor `x`; did you mean `x;system(1)`?",
            ],
        ),
        (
            "model: m\ndims: {i: 2\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:3:7: this is not valid YAML: while parsing a flow mapping, did not find expected ',' or '}'"],
        ),
        (
            "model: m\ndims: {i: 2}\n\tinputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n",
            &["t.yaml:3:2: this is not valid YAML: while parsing a block mapping, did not find expected key"],
        ),
        ("model: [m\nsteps: [\"y[i] = x[i]\"]\n", &["t.yaml:2:6: this is not valid YAML: illegal placement of ':' indicator"]),
        ("", &["t.yaml:1:1: a recipe must be a mapping with `model`, `dims`, `inputs` and `steps`"]),
        ("5", &["t.yaml:1:1: a recipe must be a mapping with `model`, `dims`, `inputs` and `steps`"]),
        ("- a", &["t.yaml:1:1: a recipe must be a mapping with `model`, `dims`, `inputs` and `steps`"]),
        ("model: m", &["t.yaml:1:1: the recipe has no `dims`; add it", "t.yaml:1:1: the recipe has no `steps`; add it"]),
        ("\0", &["t.yaml:1:1: this is not valid YAML: unexpected character: `\\u{0}'"]),
        (
            "steps: 3",
            &[
                "t.yaml:1:1: the recipe has no `model`; add it",
                "t.yaml:1:1: the recipe has no `dims`; add it",
                "t.yaml:1:8: `steps` must be a list of steps, each `- name[index, …] = expression`",
            ],
        ),
        ("model: m\ndims: {i: 2}\nsteps: []", &["t.yaml:3:8: `steps` must be a list of at least one step"]),
    ];
    for (text, expected) in cases {
        check(text, expected);
    }
}

#[test]
fn subscripts_that_are_not_affine_have_a_way_around() {
    let says = |step: &str| errors(&with_steps(&[step])).join("\n");
    for (subscript, column, why) in [
        ("2*(j-i)+i*j", 26, "an index is multiplied by a whole number alone"),
        ("j/2", 18, "a quotient of an index is rounded down, as in `floor(p / 2)`"),
        ("j+floor(i)", 20, "`floor` of a quotient and `size` of a dim are the only calls in a subscript"),
        ("size(i)/2+j", 18, "this quotient is no whole number; round it down by `floor(…)`"),
    ] {
        let said = says(&format!("a[i,b,j] = x[i,b,{subscript} else 0]"));
        assert!(
            said.starts_with(&format!("t.yaml:12:{}: `", column + 4)) && said.ends_with(&format!("` is no subscript of `x`: {why}")),
            "{said}"
        );
    }
    assert_eq!(
        says("a[u,i] = w[c[u], i]"),
        "t.yaml:12:16: `c` stores f32, and what names rows is a whole number: give it `dtype: i32` in `parameters`"
    );
    assert_eq!(
        says("a[u,i] = w[c[u] + 1, i]"),
        "t.yaml:12:16: `c[u]+1` is no subscript: what a tensor holds names a row by itself; give the number a step of its own, `row[…] = \
         c[u]+1`, and read `w[row[…], …]`"
    );
    for subscript in ["0.5*i", "exp(i)", "i < 2", "max(i, 2)"] {
        let said = says(&format!("a[u,i] = w[u,{subscript}]"));
        assert!(said.contains("` is no subscript: it is made of whole-number multiples of indices"), "{said}");
    }
    assert!(says("\"a[u] = w[u,1:3]\"").contains("`1:3` is no subscript: give the part a dim of its own, `t`, and read `w[…, t + 1, …]`"));
    assert!(says("\"a[u] = w[u,:]\"").contains("`:` is no subscript"));
    assert_eq!(says("a[i] = sum(x, over: [b, 2*j])"), "t.yaml:12:29: `2*j` is no dim: after `over:` stand names of dims");
    assert!(says("a[u+1] = c[u]").contains("`u+1` is no subscript on the left: a step assigns a whole tensor"));
    assert!(says("a[u else 0] = c[u]").contains("between indices, or `]` after the last one), but `else` stands here"));
    assert!(says("a[u] = c[u else 0, 1]").contains("nothing follows the value of what lies outside"));
    assert_eq!(says("a[u] = c[u+half else 0]"), "t.yaml:12:16: the constant `half` is no whole number, and a subscript is made of those");
    assert_eq!(says("a[u] = c[u+uu else 0]"), "t.yaml:12:16: unknown dim `uu`; did you mean `u`?");
    assert!(says("a[u] = c[u+1 else g[0]]").contains("what stands after `else` must be a number known from the recipe alone"));
}

#[test]
fn elements_outside_a_tensor_need_a_value() {
    let says = |step: &str| errors(&with_steps(&[step])).join("\n");
    assert_eq!(
        says("a[p,j] = sum(x[p+2,b,j-1], over: b)"),
        "t.yaml:12:20: `p+2` reaches from 2 to 5, but axis 1 of `x`, `i`, goes from 0 to 4; give what lies outside a value, as in \
         `x[… else 0]`, or change the sizes\n\
         t.yaml:12:26: `j-1` reaches from -1 to 1, but axis 3 of `x`, `j`, goes from 0 to 2; give what lies outside a value, as in \
         `x[… else 0]`, or change the sizes"
    );
    assert!(says("a[p] = g[0-p]").contains("`0-p` reaches from -3 to 0"));
    assert!(says("a[u] = c[7]").contains("`7` reaches from 7 to 7"));
    // A window is reduced by the rule of every other index.
    assert!(says("a[p] = g[p+j-1 else 0]").contains("the index `j` occurs only once in this product and not on the left"));
}

/// The alternatives that messages suggest are valid recipes.
#[test]
fn the_ways_around_are_recipes() {
    for step in [
        "a[b,j] = sum(where(j == k, s[b,j,k], 0), over: k)",
        "a[j,k] = where(j == k, sum(x[i,b,j], over: [i, b]), 0)",
        "a[b,i] = sum(where(c[u] == i, w[u,i], 0) * sum(s[b,j,k], over: [j, k]), over: u)",
        "a[u] = sum(where(i == 0, w[u,i], 0), over: i)",
        "a[u] = c[(u)]",
        "a[p] = g[p + 1]",
        "a[p] = c[2*p]",
        "a[u] = w[u,0]",
        "a[p,j] = sum(g[2*p+j-1 else 0] * w[p+j,i], over: i)",
        "a[u] = c[size(u)-1-u]",
        "a[u] = where(u < size(p), g[u else 0], c[u-size(p) else 0])",
        "a[u,i] = w[floor(u/2), i]",
        "a[p] = max(g[p+j else -inf], over: j)",
    ] {
        let loaded = recipes::load::load_str("t.yaml", &with_steps(&[step]), &[]);
        assert!(loaded.is_ok(), "{step}: {}", loaded.unwrap_err());
    }
}

#[test]
fn files_written_by_memlet_are_no_recipes() {
    let folder = tempfile::tempdir().unwrap();
    let says = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        recipes::load::load(&path, &[]).unwrap_err().to_string().replace(&path.display().to_string(), "FILE")
    };
    let plan = format!("{{\n  \"format\": 1,\n  \"recipe\": \"a/b.yaml\",\n  \"text\": \"{}\"\n}}", "x".repeat(2 << 20));
    assert_eq!(
        says("plan.json", &plan),
        "FILE:1:1: this is a plan that `memlet optimize` wrote, not a recipe; run it with `memlet run FILE`, or ask `memlet explain FILE` what it \
         is; its recipe is `a/b.yaml`"
    );
    assert!(says("records.jsonl", "{\"line\":\"session\"}\n").contains("these are records of measurements, not a recipe"));
}

#[test]
fn numbers_that_would_become_others() {
    let size = |written: &str| errors(&format!("model: m\ndims: {{i: {written}}}\ninputs: {{x: [i]}}\nsteps: [\"y[i] = x[i]\"]\n"));
    let whole = |written: &str| format!("it is a whole number from 1 to 2^62, but here stands {written}");
    let nothing = "nothing, or null, stands here; write a whole number, another dim, or an expression such as 4*i";
    for (written, why) in [
        ("010", "`010` begins with a zero, which some read as octal; write 10".to_string()),
        ("08", "`08` begins with a zero, which some read as octal; write 8".into()),
        ("\"08\"", "`08` begins with a zero, which some read as octal; write 8".into()),
        ("2*010", "`010` begins with a zero, which some read as octal; write 10".into()),
        ("2.05", whole("2.05")),
        ("null", nothing.into()),
        ("~", nothing.into()),
        (".inf", whole(".inf")),
        ("-.inf", whole("-.inf")),
        ("1e400", whole("1e400")),
        ("1e-400", whole("1e-400")),
        ("9223372036854775808", whole("9223372036854775808")),
        ("-9223372036854775809", whole("-9223372036854775809")),
    ] {
        assert_eq!(size(written), [format!("t.yaml:2:11: the size of `i` has no value: {why}")], "{written}");
    }
    let constant = |written: &str| {
        format!("model: m\ndims: {{i: 2}}\nconstants: {{c: {written}}}\ninputs: {{x: [i]}}\nsteps: [\"y[i] = where(x > 0, c, 0)\"]\n")
    };
    let step = |written: &str| with_steps(&[&format!("a[i] = g[i] * {written}")]);
    for (written, why) in [
        ("1e400", "the number `1e400` is too large; write inf if infinity is meant"),
        ("1e-400", "the number `1e-400` is too small and would be 0; write 0 if that is meant"),
        ("010", "`010` begins with a zero, which some read as octal; write 10"),
        ("9223372036854775809", "the number `9223372036854775809` has more digits than f64 holds; the nearest is 9223372036854775808"),
    ] {
        assert_eq!(errors(&constant(written)), [format!("t.yaml:3:16: {why}")], "{written}");
        assert_eq!(errors(&step(written)), [format!("t.yaml:12:19: {why}")], "{written}");
    }
    assert_eq!(errors(&constant("-1e400")), ["t.yaml:3:16: the number `1e400` is too large; write inf if infinity is meant"]);
    assert_eq!(errors(&constant(".nan")), ["t.yaml:3:16: `.nan` is not a number"]);
    assert!(errors(&constant("nan"))[0].contains("unknown tensor `nan`"));
    for infinite in ["inf", ".inf", "-.inf", "-inf"] {
        assert!(recipes::load::load_str("t.yaml", &constant(infinite), &[]).is_ok(), "{infinite}");
    }
    // f64 holds these numbers, f32 does not.
    for (written, becomes) in [("1e39", "infinite"), ("1e-46", "0")] {
        let says = &errors(&step(written))[0];
        assert!(says.contains(&format!("the number {written} in `a` is {becomes} in f32")), "{says}");
        let wide = step(written).replace("model: test\n", "model: test\ndtype: f64\n");
        assert!(recipes::load::load_str("t.yaml", &wide, &[]).is_ok(), "{written}");
    }
}

#[test]
fn infinity_is_no_name() {
    let text = "model: m\ndims: {i: 2, inf: 3}\ninputs: {x: [i]}\nsteps: [\"y[i] = x[i]\"]\n";
    check(text, &["t.yaml:2:14: `inf` cannot be a name: in steps `inf` is infinity"]);
    check(
        &text.replace("inf: 3", "j: 3").replace("{x:", "{inf: [i], x:"),
        &["t.yaml:3:10: `inf` cannot be a name: in steps `inf` is infinity"],
    );
}

#[test]
fn a_model_may_have_any_name() {
    let named = |name: &str| with_steps(&["a[i] = g[i]"]).replace("model: test", &format!("model: {name}"));
    for (written, name) in
        [("gpt-2", "gpt-2"), ("\"a */ b/../c: \\\"d\\\"\"", "a */ b/../c: \"d\""), ("Modèle 模型", "Modèle 模型"), ("inf", "inf")]
    {
        let recipe = recipes::load::load_str("t.yaml", &named(written), &[]).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(recipe.program.name, name);
        let text = sdfg::text::print(&recipe.program);
        assert_eq!(sdfg::text::parse(&text).unwrap_or_else(|e| panic!("{e}")).name, name);
    }
    check(&named("\"\""), &["t.yaml:1:8: `` cannot be a name: a model's name has at least one character"]);
    check(&named("\"a\\nb\""), &["t.yaml:1:8: `a\\nb` cannot be a name: a model's name is one line, without control characters"]);
    check(&named("5"), &["t.yaml:1:8: `model` must be a text; put `5` in quotes if it is one"]);
}

#[test]
fn every_error_is_reported_at_once() {
    let text = "model: m\ndims: {i: 0}\ntypo: 1\ninputs: {x: [q]}\nsteps:\n  - a[i] = y[i]\n  - b[i] = reul(x)\n";
    let expected = [
        "t.yaml:2:11: the size of `i` is 0; a size is at least 1",
        "t.yaml:3:1: unknown key `typo`; did you mean `dtype`?",
        "t.yaml:4:14: unknown dim `q`; valid: `i`",
        "t.yaml:6:12: unknown tensor `y`; valid: `x`",
        "t.yaml:7:12: unknown operator `reul`; did you mean `relu`?",
    ];
    check(text, &expected);
}

#[test]
fn an_error_is_not_repeated_by_the_steps_that_read_its_result() {
    check(&with_steps(&["a[i] = g[i] +", "z[i] = relu(a[i])"]), &["t.yaml:12:17: an expression was expected, but the step ends here"]);
    check(&with_steps(&["a[i] = gg[i]", "z[i] = softmax(a, over: i)"]), &["t.yaml:12:12: unknown tensor `gg`; did you mean `g`?"]);
}

#[test]
fn a_tensor_that_is_also_an_index_is_ambiguous_without_brackets() {
    let text = "model: m\ndims: {i: 2}\ninputs: {i: [i]}\nsteps: [\"y[i] = i\"]\n";
    check(text, &["t.yaml:4:17: `i` means both a tensor or constant and an index here; write `i[…]` for the tensor, or rename it"]);
    assert!(recipes::load::load_str("t.yaml", &text.replace("= i", "= i[i]"), &[]).is_ok());
}

#[test]
fn unread_tensors_are_reported_without_an_error() {
    let recipe =
        recipes::load::load_str("t.yaml", &with_steps(&["a[u,b,j] = w[u,i] * x[i,b,j] + sum(s[b,j,k], over: k) + c[u]"]), &[]).unwrap();
    let told: Vec<String> = recipe.unread.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["t.yaml:10:3: `g` is read by no step; remove it if that is not meant"]);
}

#[test]
fn constants_that_fail() {
    let text = "model: m\ndims: {i: 2}\nconstants:\n  a: 1 / siz(i)\n  b: 2 +\n  c: z\n  d: i\n  e: [1]\ninputs: {x: [i]}\nsteps: [\"y[i] = a * b * c * d * e * x[i]\"]\n";
    check(
        text,
        &[
            "t.yaml:4:10: unknown operator `siz`; did you mean `sin`?",
            "t.yaml:5:8: an expression was expected, but the step ends here",
            "t.yaml:6:6: unknown tensor `z`; valid: `a`, `b`",
            "t.yaml:7:6: the index `i` is used as a number, but nothing here runs over it; put it on the left or in an operand",
            "t.yaml:8:6: the constant `e` must be a number, or an expression of numbers and sizes",
        ],
    );
}

#[test]
fn overrides_that_fail() {
    let text = with_steps(&["a[i] = g[i]"]);
    let failing = |name: &str, value: i64| {
        let failed = recipes::load::load_str("t.yaml", &text, &[(name.to_string(), value)]);
        failed.map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(failing("k", 3), "t.yaml:2:7: --set k: `k` is defined as `j`; set what it is made of instead");
    assert_eq!(failing("bb", 3), "t.yaml:2:7: --set bb: there is no dim `bb`; did you mean `b`?");
    assert_eq!(failing("b", 0), "t.yaml:2:11: the size of `b` is 0; a size is at least 1");
}

#[test]
fn files_that_fail() {
    let folder = tempfile::tempdir().unwrap();
    let failing = |path: &std::path::Path| {
        let errors = recipes::load::load(path, &[]).map(|_| ()).unwrap_err();
        errors.to_string().replace(&path.display().to_string(), "FILE")
    };
    assert!(failing(&folder.path().join("none.yaml")).starts_with("FILE:1:1: the recipe cannot be read: No such file"));
    assert_eq!(failing(folder.path()), "FILE:1:1: the recipe cannot be read: it is a folder");
    let large = folder.path().join("large.yaml");
    std::fs::File::create(&large).unwrap().set_len(50 << 20).unwrap();
    assert_eq!(failing(&large), "FILE:1:1: the recipe has 52428800 bytes; at most 1048576 are read");
    let binary = folder.path().join("binary.yaml");
    std::fs::write(&binary, [0xff, 0xfe]).unwrap();
    assert_eq!(failing(&binary), "FILE:1:1: the recipe cannot be read: it is not UTF-8 text");
}

#[test]
fn aliases_count_as_their_targets() {
    let line = |n: usize| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n.saturating_sub(1)); 9].join(","));
    let text = format!("model: m\na0: &a0 [{}]\n{}", ["x"; 9].join(","), (1..8).map(line).collect::<String>());
    check(&text, &["t.yaml:7:18: this is not valid YAML: it is larger than any recipe, each alias counted as all that it stands for"]);
}

#[test]
fn deep_nesting_is_refused_without_running_out_of_stack() {
    let deep = "lists and mappings are nested more than 32 deep here; a recipe needs four levels";
    let many = "there are 1001 words in this step; at most 1000 are accepted";
    for n in [10_000, 100_000] {
        for (text, expected) in [
            (format!("model: {}{}", "[".repeat(n), "]".repeat(n)), format!("t.yaml:1:40: {deep}")),
            (format!("model: {}", "{a: ".repeat(n)), format!("t.yaml:1:132: {deep}")),
            ("- ".repeat(n) + "a", format!("t.yaml:1:65: {deep}")),
            (with_steps(&[&format!("a[i] = {}g{}", "(".repeat(n), ")".repeat(n))]), format!("t.yaml:12:1007: {many}")),
            (with_steps(&[&format!("a[i] = {}g", "-".repeat(n))]), format!("t.yaml:12:1007: {many}")),
            (with_steps(&[&format!("a[i] = g{}", " + g".repeat(n))]), format!("t.yaml:12:2002: {many}")),
        ] {
            check(&text, &[&expected]);
        }
    }
    let nested = format!("a[i] = {}g{}", "exp(".repeat(110), ")".repeat(110));
    check(&with_steps(&[&nested]), &["t.yaml:12:416: this is nested more than 100 deep; split the step"]);
}
